"""The whole course on machines that are pretended: every cell that launches, every solution, every chapter's library.

What may differ there stands in exceptions.py, with its reason. `.ci/run` runs every chapter's library with NCCL's
backend, one notebook's cells and its chapter's solutions; `make sweep` all of them; `make pretend` asks for all modes,
and compares every word of a report with the CPU's.
"""

import nbformat
import pytest

from tests.claims.cell import headlines
from tests.pretend import trials
from tests.pretend.exceptions import complaints
from tests.pretend.needed import built  # noqa: F401  a fixture
from tools import cells
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]

# Collectives, hooks, shards, an optimiser, memory and times.
PATHS = [*cells.NOTEBOOKS, *cells.SOLUTIONS]


@pytest.mark.sweep("path", few=[path for path in PATHS if path.name.startswith("06_")], all=PATHS,
                   ids=lambda path: f"{path.parent.name}-{path.stem}",
                   words=f"the cells of 1 notebook of {len(cells.NOTEBOOKS)} and its solutions on pretended GPUs")
def test_every_cell_that_launches_prints_the_same_and_every_solution_passes_with_a_gpu_for_each_rank(path):
    of_cells = cells.lessons if path in cells.NOTEBOOKS else cells.checks
    assert complaints("nccl", of_cells("nccl", path)) == []


@pytest.mark.parametrize("name", trials.TRIALS)
@pytest.mark.sweep("mode", few=["nccl"], all=["nccl", "gloo-cuda"],
                   words="1 backend of 2 under each chapter's library on pretended GPUs")
def test_every_chapters_library_gives_the_same_numbers_on_gpus(mode, name):
    with pretended(MODES[mode]):
        assert complaints(mode, [trials.run(name)]) == []


def test_a_headline_about_times_may_give_way_on_a_pretended_gpu_and_no_other_one():
    def said(what, now):
        text = [nbformat.v4.new_output("execute_result", {"text/plain": each}) for each in (now, "Chart: it is fast")]
        return cells.lesson(what, text[:1], text[1:]).other_output

    timed = sorted(cells.ABOUT_TIMES)[0]
    assert said(timed, "Chart: not seen here: it is fast") == "" != said(timed, "Chart: not seen here: it is slow")
    assert said("06[18]", "Chart: not seen here: it is fast") != ""
    for what in cells.ABOUT_TIMES:
        (path,) = [path for path in cells.NOTEBOOKS if path.name.startswith(what[:2])]
        assert headlines(nbformat.read(path, as_version=4).cells[int(what[3:-1])].source), what
