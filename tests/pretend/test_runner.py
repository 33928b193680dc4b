"""The runner of cells: what it runs, what it counts as passed, what it complains of. (Needs no device and no rank.)"""

from nbformat.v4 import new_output

from tests.pretend import exceptions
from tools import cells
from tools.cells import Outcome
from tools.harness import needs


def test_a_cell_passes_when_it_fails_as_recorded_and_says_what_it_prints_otherwise():
    def stream(text):
        return new_output("stream", name="stdout", text=text)

    def error(name, said="rank 1 failed\n  ValueError: no"):
        return new_output("error", ename=name, evalue=said, traceback=[])

    meant = cells.lesson("00[1]", [error("Deadlock")], [error("Deadlock")])
    assert meant.passed and not meant.other_output
    vanished = cells.lesson("00[1]", [], [error("Deadlock")])
    assert (vanished.passed, vanished.error) == (False, "no Deadlock")
    broken = cells.lesson("00[1]", [error("RankFailed")], [])
    assert (broken.passed, broken.error) == (False, "RankFailed: ValueError: no")
    printed = cells.lesson("00[1]", [stream("7 ranks, took 1 s")], [stream("6 ranks, took 2 s")])
    assert printed.passed and printed.other_output == "'7 ranks, took TIME' for '6 ranks, took TIME'"


def test_only_cells_that_launch_run_and_what_they_need():
    notebook = {
        "import torch": True,
        "x = 1": True,
        "x = torch.ones(2)": True,
        "x.add_(1)": True,
        "def step():\n    return x": True,
        "launch(step)": True,
        "%matplotlib inline": True,
        "n = 3": False,
        "sizes = [n for n in range(4)]\nprint(sizes)": False,
        "for n in range(2):\n    launch(print, n)": True,
        "plt.plot(x)": False,
        "step()": False,
    }
    kept = needs.kept(list(notebook))
    # `x` is given anew before anybody asks; the loop names `n`, though it gives it first
    assert dict(zip(notebook, kept)) == notebook | {"x = 1": False, "n = 3": True}


def test_cells_of_ranks_that_stay_run_and_give_the_notebook_nothing():
    sources = ["x = 1", "team = start_ranks(world_size=4)", "%%ranks\nx = torch.ones(2)", "y = 2", "%%ranks 1\nx * y",
               "team", "team.close()", "launch(print, x)"]
    assert needs.kept(sources) == [True] * 8
    assert [needs.launches(source) for source in sources] == [False, True, True, False, True, True, True, True]


def test_nobody_may_fail_unexplained_and_no_explanation_may_outlive_its_failure(monkeypatch):
    monkeypatch.setattr(exceptions, "EXCEPTIONS", {("b", "nccl"): "gloo's own", ("c", "nccl"): "gone"})
    outcomes = [Outcome("a", False, "no"), Outcome("b", False, "no"), Outcome("c", True),
                Outcome("d", True, other_output="1 for 2"), Outcome("e", True)]
    assert exceptions.complaints("nccl", outcomes) == [
        "a under nccl: no", "c under nccl passes: its entry in exceptions.py (gone) has to go",
        "d under nccl: prints 1 for 2"]
