"""The whole course on machines that are pretended: every cell that launches, every solution, every chapter's library.

What may differ there stands in exceptions.py, with its reason. `.ci/run` runs every chapter's library with NCCL's
backend, one notebook's cells and its chapter's solutions; `make sweep` all of them; `make pretend` asks for all modes,
and compares every word of a report with the CPU's.
"""

import nbformat
import pytest

from tests.claims.cell import headlines
from tests.pretend import trials
from tests.pretend.exceptions import EXCEPTIONS, complaints
from tests.pretend.needed import built  # noqa: F401  a fixture
from tools import cells
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

# Collectives, hooks, shards, an optimiser, memory and times.
NOTEBOOK = [path for path in cells.NOTEBOOKS if path.name.startswith("06_")]
SOLUTIONS = [path for path in cells.SOLUTIONS if path.name.startswith("06_")]

pytestmark = pytest.mark.ci

@pytest.mark.sweep("path", few=NOTEBOOK, all=cells.NOTEBOOKS, ids=lambda path: path.stem,
                   words=f"the cells of 1 notebook of {len(cells.NOTEBOOKS)} on pretended GPUs")
def test_every_cell_that_launches_runs_and_prints_the_same_with_a_gpu_for_each_rank(path):
    assert complaints("nccl", cells.lessons("nccl", path)) == []


@pytest.mark.sweep("path", few=SOLUTIONS, all=cells.SOLUTIONS, ids=lambda path: path.stem,
                   words=f"the solutions of 1 chapter of {len(cells.SOLUTIONS)} on pretended GPUs")
def test_every_solution_passes_with_a_gpu_for_each_rank(path):
    assert complaints("nccl", cells.checks("nccl", path)) == []


@pytest.mark.parametrize("name", trials.TRIALS)
@pytest.mark.sweep("mode", few=["nccl"], all=["nccl", "gloo-cuda"],
                   words="1 backend of 2 under each chapter's library on pretended GPUs")
def test_every_chapters_library_gives_the_same_numbers_on_gpus(mode, name):
    with pretended(MODES[mode]):
        assert complaints(mode, [trials.run(name)]) == []


def test_every_exception_names_a_mode_and_something_that_there_is():
    there = {f"{path.name[:2]}[{number}]" for path in cells.NOTEBOOKS
             for number, cell in enumerate(nbformat.read(path, as_version=4).cells)} | set(trials.TRIALS)
    assert {mode for _, mode in EXCEPTIONS} <= set(MODES)
    assert [what for what, _ in EXCEPTIONS if what not in there and "." not in what] == []


def test_a_headline_about_times_may_give_way_on_a_pretended_gpu_and_no_other_one():
    def said(what, now):
        text = [nbformat.v4.new_output("execute_result", {"text/plain": each}) for each in (now, "Chart: it is fast")]
        return cells.lesson(what, text[:1], text[1:]).other_output

    timed = sorted(cells.ABOUT_TIMES)[0]
    assert said(timed, "Chart: not seen here: it is fast") == "" != said(timed, "Chart: not seen here: it is slow")
    assert said("06[18]", "Chart: not seen here: it is fast") != ""
    assert [what for what in cells.ABOUT_TIMES if not headlines(source_of(what))] == []


def source_of(what):
    """Of a notebook's cell: "00[17]"."""
    chapter, number = what[:-1].split("[")
    (path,) = [path for path in cells.NOTEBOOKS if path.name.startswith(chapter)]
    return nbformat.read(path, as_version=4).cells[int(number)].source
