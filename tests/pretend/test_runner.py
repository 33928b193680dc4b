"""The runner of cells: what it runs, what it counts as passed, what it complains of. (Needs no device and no rank.)"""

import pytest
from nbformat.v4 import new_output

from tests.pretend import exceptions
from tools import cells
from tools.cells import Outcome
from tools.harness import needs


def stream(text):
    return [new_output("stream", name="stdout", text=text)]


def error(name):
    return [new_output("error", ename=name, evalue="rank 1 failed\n  ValueError: no", traceback=[])]


@pytest.mark.parametrize("now, recorded, outcome", [
    (error("Deadlock"), error("Deadlock"), Outcome("00[1]", True)),
    ([], error("Deadlock"), Outcome("00[1]", False, "no Deadlock")),
    (error("RankFailed"), [], Outcome("00[1]", False, "RankFailed: ValueError: no")),
    (stream("7 ranks, took 1 s"), stream("6 ranks, took 2 s"),
     Outcome("00[1]", True, other_output="'7 ranks, took TIME' for '6 ranks, took TIME'"))])
def test_a_cell_passes_when_it_fails_as_recorded_and_says_what_it_prints_otherwise(now, recorded, outcome):
    assert cells.lesson("00[1]", now, recorded) == outcome


def test_only_cells_that_launch_run_and_what_they_need():
    notebook = {"import torch": True, "x = 1": True, "x = torch.ones(2)": True, "x.add_(1)": True,
                "def step():\n    return x": True, "launch(step)": True, "%matplotlib inline": True, "n = 3": False,
                "sizes = [n for n in range(4)]\nprint(sizes)": False, "for n in range(2):\n    launch(print, n)": True,
                "plt.plot(x)": False, "step()": False}
    assert dict(zip(notebook, needs.kept(list(notebook)))) == notebook | {
        "x = 1": False, "n = 3": True}  # x is given anew before it is used; the loop names n, though it gives it first
    of_ranks_that_stay = {"x = 1": False, "team = start_ranks(world_size=4)": True, "%%ranks\nx = torch.ones(2)": True,
                          "y = 2": False, "%%ranks 1\nx * y": True, "team": True, "team.close()": True,
                          "launch(print, x)": True}
    assert needs.kept(list(of_ranks_that_stay)) == [True] * 8
    assert {source: needs.launches(source) for source in of_ranks_that_stay} == of_ranks_that_stay


def test_nobody_may_fail_unexplained_and_no_explanation_may_outlive_its_failure(monkeypatch):
    monkeypatch.setattr(exceptions, "EXCEPTIONS", {("b", "nccl"): "gloo's own", ("c", "nccl"): "gone"})
    outcomes = [Outcome("a", False, "no"), Outcome("b", False, "no"), Outcome("c", True),
                Outcome("d", True, other_output="1 for 2"), Outcome("e", True)]
    assert exceptions.complaints("nccl", outcomes) == [
        "a under nccl: no", "c under nccl passes: its entry in exceptions.py (gone) has to go",
        "d under nccl: prints 1 for 2"]
