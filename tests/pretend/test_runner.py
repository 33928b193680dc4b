"""The runner of cells: what it runs, what it counts as passed, what it complains of. (Needs no device and no rank.)"""

import pytest
from nbformat.v4 import new_output

from tests.pretend import exceptions
from tools import cells
from tools.cells import Outcome
from tools.harness.needs import launches


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


@pytest.mark.parametrize("source, does", [
    ("launch(step)", True), ("for n in range(2):\n    launch(print, n)", True), ('launch(step, device="cpu")', False),
    ("team = start_ranks(world_size=4)", True), ("team", True), ("%%ranks 1\nx * y", True), ("step()", False),
    ("%matplotlib inline", False)])
def test_a_cell_launches_that_starts_ranks_or_uses_those_that_stay(source, does):
    assert launches(source) == does


def test_nobody_may_fail_unexplained_and_no_explanation_may_outlive_its_failure(monkeypatch):
    monkeypatch.setattr(exceptions, "EXCEPTIONS", {("b", "nccl"): "gloo's own", ("c", "nccl"): "gone"})
    outcomes = [Outcome("a", False, "no"), Outcome("b", False, "no"), Outcome("c", True),
                Outcome("d", True, other_output="1 for 2"), Outcome("e", True)]
    assert exceptions.complaints("nccl", outcomes) == [
        "a under nccl: no", "c under nccl passes: its entry in exceptions.py (gone) has to go",
        "d under nccl: prints 1 for 2"]
