"""The interpreters kept warm (macOS, Windows), forced here on any platform: the promises of forked ranks and teams.

Starting interpreters takes seconds, so one script makes all launches, in a process of its own, and prints one line for
each claim.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]  # forced here on any platform: macOS' and Windows' way
_WITHIN_S = 85.0  # a watchdog: interpreters import torch

SCRIPT = '''
import os, subprocess, sys
from pathlib import Path
import torch, torch.distributed as dist
from course_lib.runtime import Deadlock, RankDied, RankFailed, launch, start_ranks
from tests.faults import inside
from tests.faults.kinds import Plan, complaints, inject, rank_sum, start_a_daemon
from tests.faults.traces import alive

KINDS = ("exception", "exception in all", "unpicklable result", "sys.exit", "recv nobody answers", "os._exit",
         "endless loop")

def works():
    return list(launch(rank_sum, world_size=2)) == [1.0, 1.0]

def claim(name, holds):
    print(name, "holds" if holds else "FAILS", flush=True)

def talk():
    print("hello")
    print("twice", end="")

def start_things():
    return [start_a_daemon(), subprocess.Popen(["sleep", "1000"]).pid]

def ask_the_module():
    sys.dont_write_bytecode = True
    import beside_the_notebook
    return beside_the_notebook.answer

def fails(error, cell):
    try:
        team.run_cell(cell, scope=globals())
    except error as caught:
        return str(caught)
    return ""

with inside.limits(still_s=1.0):
    claim("interpreters stay warm", list(launch(os.getpid, world_size=2)) == list(launch(os.getpid, world_size=2)))
    launch(talk, world_size=2)
    if os.name != "nt":
        claim("what ranks started has ended", not any(map(alive, sum(launch(start_things, world_size=2), []))))
    sys.path.insert(0, os.getcwd())
    module, answers = Path("beside_the_notebook.py"), []
    for answer in (1, 22):
        module.write_text(f"answer = {answer}")
        answers += launch(ask_the_module, world_size=2)
    module.unlink()
    claim("an edited module is fresh", answers == [1, 1, 22, 22])
    for kind in KINDS:
        plan = Plan(world_size=2)
        found = complaints(kind, plan, inject(kind, plan))
        claim(f"{kind} {found}", not found and works())
    if sys.platform == "linux":
        open_files = [works() and len(os.listdir("/proc/self/fd")) for _ in range(4)]
        claim(f"no launch leaves a descriptor {open_files}", open_files[-1] <= max(open_files[:-1]))
    with start_ranks(2) as team:
        team.run_cell("kept = dist.get_rank()", scope=globals())
        claim("a launch beside a team", list(launch(lambda: 1, world_size=1)) == [1])
        claim("an error keeps all", "All ranks live" in fails(RankFailed, "1 / 0"))
        if sys.platform == "linux":
            claim("a hang keeps all", "All ranks live" in fails(Deadlock, "dist.recv(torch.ones(1), src=1 - kept)"))
        x = "x = torch.ones(1)\\ndist.all_reduce(x)\\nx.item()"
        claim("the next cell runs", team.run_cell(x, scope=globals()) == {0: "2.0", 1: "2.0"})
        claim("names are kept", team.pull("kept") == [0, 1])
        claim("a death ends it", "This ends the team" in fails(RankDied, "import os\\nif kept: os._exit(4)"))
        claim("the other can be looked at", team[0]["kept"] == 0)
claim("launch still works", works())
'''


def test_warm_interpreters_keep_every_promise_of_launch_and_of_teams_and_leave_no_file(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with tempfile.TemporaryDirectory(prefix="warm_") as temporary:  # pytest's own is too long a path for a socket
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COURSE_LIB_LAUNCHER": "warm",
                       "TMPDIR": temporary}
        environment.pop("PYTEST_CURRENT_TEST", None)
        ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True,
                             text=True, timeout=_WITHIN_S)
        assert ran.returncode == 0, ran.stderr
        left = [path for path in Path(temporary).rglob("*") if not path.name.startswith("torchinductor_")]  # torch's
    lines = ran.stdout.splitlines()
    claims = [line for line in lines if line.endswith((" holds", " FAILS"))]
    assert [line for line in claims if line.endswith("FAILS")] == [] and left == [], ran.stdout
    assert len(claims) == 16 + (os.name != "nt") + 2 * (sys.platform == "linux"), ran.stdout
    assert sorted(line for line in lines if line.startswith("[rank")) == [
        "[rank 0] hello", "[rank 0] twice", "[rank 1] hello", "[rank 1] twice"]
