"""A script with a team: the same output from plain python, which starts the ranks, and from torchrun, which has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHIN_S = 240.0  # a watchdog: interpreters import torch

SCRIPT = """
import json, os, pathlib
import torch, torch.distributed as dist
from course_lib.runtime import record_communication, start_ranks

def add_up():
    x = torch.full((2,), dist.get_rank() + 1.0)
    with record_communication():
        dist.all_reduce(x)
    return x.tolist()

def main():
    with start_ranks(2) as team:
        ran = team.run(add_up)
        team.run_cell("y = torch.full((2,), float(dist.get_rank()))\\ndist.all_reduce(y)", scope=globals())
        team.push(z=3)
        some = team.run_cell("z = z + dist.get_rank()\\nz", ranks=[1], scope=globals())
        return [list(ran), ran.communication.calls("all_reduce"), [y.tolist() for y in team.pull("y")], some,
                team.pull("z"), team[1].eval("z * 10"), team.alive, repr(team).replace(team._headline(), "")]

told = main()
if os.environ.get("RANK", "0") == "0":
    pathlib.Path("told.json").write_text(json.dumps(told))
"""


@pytest.mark.parametrize("starter", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]],
                         ids=["python", "torchrun"])
def test_a_script_with_a_team_says_the_same_from_python_and_from_torchrun(starter, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, *starter, "script.py"], cwd=tmp_path, env=environment, capture_output=True,
                         text=True, timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told[:7] == [[[3.0, 3.0], [3.0, 3.0]], 2, [[1.0, 1.0], [1.0, 1.0]], {"1": "4"}, [3, 4], 40, [0, 1]]
    assert "rank 1  has run" in told[7] and "other 8 B: y, z" in told[7]
