"""The simulated class holds what it says: every kind, over all chapters, with a mark that follows from the notebook."""

import json
import random

import nbformat
import pytest

from tools.exercises import assignments
from tools.simulated_class.submissions import KINDS, Chapter, find, half, make_class

CHAPTER = Chapter("01_why_distribute")


def test_two_hundred_submissions_have_every_kind_and_every_chapter_and_are_the_same_for_a_seed(tmp_path):
    truth = make_class(tmp_path / "a", 200, seed=3)
    assert list(truth) == assignments() and sum(map(len, truth.values())) == 200
    assert {student[4:] for marks in truth.values() for student in marks} == set(KINDS)
    for marks in truth.values():  # 20 submissions of 14 kinds
        assert len({student[4:] for student in marks}) >= 10
    assert make_class(tmp_path / "b", 200, seed=3) == truth


@pytest.mark.parametrize("kind", KINDS)
def test_a_submission_is_a_notebook_with_a_mark_between_none_and_all(kind):
    notebook, mark = KINDS[kind](CHAPTER, random.Random(0))
    assert 0 <= mark <= CHAPTER.all and (mark == CHAPTER.all) == (kind in (
        "right", "flood", "check deleted", "doubled", "second download", "cut off"))
    assert json.loads(nbformat.writes(notebook))["cells"]


def test_half_of_the_exercises_are_stubs_and_the_mark_is_that_of_the_others():
    notebook, mark = half(CHAPTER, random.Random(1))
    written = [cell for cell in CHAPTER.cells
               if "raise NotImplementedError" not in find(notebook, cell.solution).source]
    assert len(written) == len(CHAPTER.cells) // 2 and mark == sum(cell.points for cell in written)


def test_each_exercise_of_each_chapter_is_found_with_its_function():
    for name in assignments():
        chapter = Chapter(name)
        for cell in chapter.cells:
            assert f"def {cell.function}(" in find(chapter.read("solutions"), cell.solution).source
