"""A script with a team: the same output from plain python, which starts the ranks, and from torchrun, which has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tools.harness.needs import kept, uses_team

ROOT = Path(__file__).parents[2]
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, *starter, "script.py"], cwd=tmp_path, env=environment, capture_output=True,
                         text=True, timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told[:7] == [[[3.0, 3.0], [3.0, 3.0]], 2, [[1.0, 1.0], [1.0, 1.0]], {"1": "4"}, [3, 4], 40, [0, 1]]
    assert "rank 1  has run" in told[7] and "other 8 B: y, z" in told[7]


NOTEBOOK_AS_SCRIPT = """
import json, os, pathlib, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="NoColor")
values = []
for cell in json.loads(pathlib.Path("cells.json").read_text()):
    ran = shell.run_cell(cell)
    ran.raise_error()
    values.append(repr(ran.result))
if os.environ["RANK"] == "0":
    pathlib.Path("values.json").write_text(json.dumps(values))
"""


SAID = {"00_start_here": "ranks 0, 1: 220544", "04_pipeline_parallel": "ranks 0, 1: {4.0}"}


@pytest.mark.sweep("chapter", few=["04_pipeline_parallel"], all=SAID, words="the cells of 1 notebook of 2")
def test_the_cells_with_a_team_of_a_notebook_run_under_torchrun_with_two_ranks(chapter, tmp_path):
    told = SAID[chapter]
    sources = [cell.source for cell in nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4).cells
               if cell.cell_type == "code"]
    cells = [source for source, is_kept in zip(sources, kept(sources, uses_team)) if is_kept]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    (tmp_path / "script.py").write_text(NOTEBOOK_AS_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    assert told in json.loads((tmp_path / "values.json").read_text())
