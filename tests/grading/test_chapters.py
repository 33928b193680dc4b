"""A folder with a judge is a chapter: nothing lists it, `check` and the class's grader run what stands there, and of it
a rank gets the text of on_rank.py alone.
"""

import sys

import pytest

from course_lib.grading import chapters, check, registry
from course_lib.grading.report import Verdict

JUDGE = """
from course_lib.grading.exercise import Exercise, Trial
from . import on_rank

class Doubled(Exercise):
    number = "12.1"
    budget = "twice"
    run = staticmethod(on_rank.doubled)

    def trials(self, seed):
        return [Trial([[1]], "one"), Trial([[seed + 2]], "another")]

    def solve(self, inputs):
        return [2 * given for given, in inputs]
"""
ON_RANK = """
from course_lib.grading.on_rank import data

def doubled(function, inputs):
    return data(function(*inputs))
"""
RECORD = '{"exercises": {"12.1": ["my_double", 1]}, "work": {}, "hints": {"12.1": ["add"]}, "mistakes": {}}'


def look_in(place, loaded):
    """Take the chapters from the folders in `place`; returns the modules of the place that is left."""
    left = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(f"{chapters.__name__}.")}
    sys.modules.update(loaded)  # an exercise that the registry knows stays the module's own
    chapters.__path__[:] = [str(place)]
    chapters.folders.cache_clear()
    return left


@pytest.fixture
def another_place(tmp_path):
    folder = tmp_path / "12_toys"
    folder.mkdir()
    for name, text in (("judge.py", JUDGE), ("on_rank.py", ON_RANK), ("recorded.json", RECORD)):
        (folder / name).write_text(text)
    loaded = look_in(tmp_path, {})
    yield
    look_in(chapters.PLACES[0], loaded)


def my_double(given):
    return given + given


def test_exercises_of_another_folder_are_found_checked_and_graded(another_place, grade):
    assert [each.number for each in registry.every_exercise()] == ["12.1"]
    assert check("12.1", my_double).passed
    assert grade("def my_double(given):\n    return 2 * given", exercise=registry.exercise("12.1")).passed
    wrong = grade("def my_double(given):\n    return 2", exercise=registry.exercise("12.1"))
    assert wrong.verdict is Verdict.WRONG and "another" in wrong.cause


def test_a_rank_gets_no_file_of_a_chapter_but_on_rank(another_place):
    name = chapters.load(12, "judge").__name__
    assert "def doubled" in chapters.text_for_ranks(name.replace("judge", "on_rank"))
    assert chapters.text_for_ranks("course_lib.grading.on_rank") is None
    with pytest.raises(ValueError, match="a rank cannot get 12_toys/judge.py"):
        chapters.text_for_ranks(name)
