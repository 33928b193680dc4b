"""The whole course on machines that are pretended: every cell that launches, every solution, every chapter's library.

What may differ there stands in exceptions.py, with its reason. `make pretend` asks for all modes.
"""

from functools import cache

import pytest

from tests.pretend import cells, trials
from tests.pretend.exceptions import EXCEPTIONS, complaints
from tests.pretend.hook import pretended
from tests.pretend.modes import MODES
from tests.pretend.needed import built  # noqa: F401  a fixture

EVERY_TIME = ("nccl", "gloo-cuda")

lessons = cache(lambda path: cells.lessons(EVERY_TIME, path))  # all modes in one kernel, once


@pytest.mark.parametrize("path", cells.NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("mode", EVERY_TIME)
def test_every_cell_that_launches_runs_and_prints_the_same_on_gpus(path, mode):
    assert complaints(mode, lessons(path)[mode]) == []


@pytest.mark.parametrize("path", cells.SOLUTIONS, ids=lambda path: path.stem)
def test_every_solution_is_graded_on_gpus_as_on_the_cpu_in_the_same_words(path):
    assert complaints("nccl", cells.checks(["cpu", "nccl"], path)["nccl"]) == []


@pytest.mark.parametrize("name", trials.TRIALS)
@pytest.mark.parametrize("mode", EVERY_TIME)
def test_every_chapters_library_gives_the_same_numbers_on_gpus(mode, name):
    with pretended(MODES[mode]):
        assert complaints(mode, [trials.run(name)]) == []


def test_every_exception_names_a_mode_and_something_that_there_is():
    there = {f"{path.name[:2]}[{number}]" for path in cells.NOTEBOOKS
             for number, cell in enumerate(cells.nbformat.read(path, 4).cells)} | set(trials.TRIALS)
    assert {mode for _, mode in EXCEPTIONS} <= set(MODES)
    assert [what for what, _ in EXCEPTIONS if what not in there and "." not in what] == []
