"""Ranks that stay in interpreters kept warm (macOS, Windows), forced here on any platform: what a team promises."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_WITHIN_S = 300.0  # a watchdog: interpreters import torch

SCRIPT = """
import sys
import torch, torch.distributed as dist
from course_lib.runtime import Deadlock, RankDied, RankFailed, TeamEnded, launch, start_ranks
from course_lib.runtime.ranks import supervisor

supervisor._STILL_S = 1.0

def claim(name, holds):
    print(name, "holds" if holds else "FAILS", flush=True)

def fails(error, cell):
    try:
        team.run_cell(cell, scope=globals())
    except error as caught:
        return str(caught)
    return ""

def main():
    global team
    with start_ranks(2) as team:
        team.run_cell("kept = dist.get_rank()\\nprint('hello')", scope=globals())
        claim("a launch beside it", list(launch(lambda: 1, world_size=1)) == [1])
        claim("an error keeps all", "All ranks live" in fails(RankFailed, "1 / 0"))
        if sys.platform == "linux":
            claim("a deadlock keeps all", "All ranks live" in fails(Deadlock, "dist.recv(torch.ones(1), src=1 - kept)"))
        x = "x = torch.ones(1)\\ndist.all_reduce(x)\\nx.item()"
        claim("the next cell runs", team.run_cell(x, scope=globals()) == {0: "2.0", 1: "2.0"})
        claim("names are kept", team.pull("kept") == [0, 1])
        claim("a death ends it", "This ends the team" in fails(RankDied, "import os\\nif kept: os._exit(4)"))
        claim("the other can be looked at", team[0]["kept"] == 0)
    claim("launch still works", list(launch(lambda: 1, world_size=2)) == [1, 1])

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def temporary():
    with tempfile.TemporaryDirectory(prefix="warm_") as folder:  # pytest's own is too long a path for a socket
        yield Path(folder)


def test_warm_interpreters_keep_the_promises_of_a_team_and_nothing_is_left(tmp_path, temporary):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COURSE_LIB_LAUNCHER": "warm",
                   "TMPDIR": str(temporary)}
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                         timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line for line in lines if line.endswith("FAILS")] == [] and len(lines) == 10, ran.stdout
    assert [path for path in temporary.rglob("*") if not path.name.startswith("torchinductor_")] == []
