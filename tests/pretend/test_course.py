"""The whole course on machines that are pretended: every cell that launches, every solution, every chapter's library.

What may differ there stands in exceptions.py, with its reason. This is what `make test` has the time for; `make
pretend` asks for all modes, and compares every word of a report with the CPU's.
"""

import pytest

from tests.pretend import cells, trials
from tests.pretend.exceptions import EXCEPTIONS, complaints
from tests.pretend.hook import pretended
from tests.pretend.modes import MODES
from tests.pretend.needed import built  # noqa: F401  a fixture


@pytest.mark.parametrize("path", cells.NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_that_launches_runs_and_prints_the_same_with_a_gpu_for_each_rank(path):
    assert complaints("nccl", cells.lessons(["nccl"], path)["nccl"]) == []


@pytest.mark.parametrize("path", cells.SOLUTIONS, ids=lambda path: path.stem)
def test_every_solution_passes_with_a_gpu_for_each_rank(path):
    assert complaints("nccl", cells.checks(["nccl"], path)["nccl"]) == []


@pytest.mark.parametrize("name", trials.TRIALS)
@pytest.mark.parametrize("mode", ["nccl", "gloo-cuda"])
def test_every_chapters_library_gives_the_same_numbers_on_gpus(mode, name):
    with pretended(MODES[mode]):
        assert complaints(mode, [trials.run(name)]) == []


def test_every_exception_names_a_mode_and_something_that_there_is():
    there = {f"{path.name[:2]}[{number}]" for path in cells.NOTEBOOKS
             for number, cell in enumerate(cells.nbformat.read(path, 4).cells)} | set(trials.TRIALS)
    assert {mode for _, mode in EXCEPTIONS} <= set(MODES)
    assert [what for what, _ in EXCEPTIONS if what not in there and "." not in what] == []
