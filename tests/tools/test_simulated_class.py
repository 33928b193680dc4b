"""The simulated class holds what it says: every kind, over all chapters, with points that follow from how it was made;
and whoever starts it again goes on where it was."""

import json
import random

import nbformat
import pytest

from course_lib.grading.registry import exercises_of
from tools.exercises import assignments
from tools.simulated_class import __main__ as tool
from tools.simulated_class.submissions import KINDS, Chapter, find, half, make_class

CHAPTER = Chapter("01_why_distribute")
ALL = sum(each.points for each in CHAPTER.cells)


def test_two_hundred_submissions_have_every_kind_in_every_chapter_and_are_the_same_for_a_seed(tmp_path):
    truth = make_class(tmp_path / "a", 200, seed=3)
    assert list(truth) == assignments() and sum(map(len, truth.values())) == 200
    for deserved in truth.values():
        assert {student[4:] for student in deserved} == {*KINDS}
    assert make_class(tmp_path / "b", 200, seed=3) == truth


@pytest.mark.parametrize("kind", KINDS)
def test_a_submission_is_a_notebook_with_points_between_none_and_all(kind):
    notebook, missed = KINDS[kind](CHAPTER, random.Random(0))
    points = CHAPTER.points_without(missed)
    assert points.keys() == {each.number for each in exercises_of(1)}
    assert (sum(points.values()) == ALL) == (kind in (
        "right", "flood", "check deleted", "doubled", "second download", "cut off"))
    assert json.loads(nbformat.writes(notebook))["cells"]


def test_half_of_the_exercises_are_stubs_and_the_points_are_those_of_the_others():
    notebook, missed = half(CHAPTER, random.Random(1))
    stubs = [cell for cell in CHAPTER.cells if "raise NotImplementedError" in find(notebook, cell.solution).source]
    assert len(stubs) == len(CHAPTER.cells) - len(CHAPTER.cells) // 2 and stubs == list(missed)


def test_each_exercise_of_each_chapter_is_found_with_its_function_number_and_points():
    for number, name in enumerate(assignments(), 1):
        chapter = Chapter(name)
        assert [(each.number, each.function, each.points) for each in chapter.cells] == [
            (each.number, each.function, each.points) for each in exercises_of(number)]
        for cell in chapter.cells:
            assert f"def {cell.function}(" in find(chapter.read("solutions"), cell.solution).source


@pytest.fixture
def simulated(tmp_path):
    return tool.SimulatedClass.at(tmp_path / "class", 40, 0)


def test_started_again_it_is_the_same_class_with_what_was_done(simulated):
    simulated.killed.append("01_why_distribute")
    simulated.seconds = 7.0
    simulated.save()
    assert tool.SimulatedClass.at(simulated.folder, 40, 0) == simulated


def test_another_class_and_a_folder_of_somebody_else_are_refused(simulated, tmp_path):
    with pytest.raises(SystemExit, match="holds a class of 40 with seed 0"):
        tool.SimulatedClass.at(simulated.folder, 41, 0)
    with pytest.raises(SystemExit, match="expected a new folder"):
        tool.SimulatedClass.at(tmp_path, 40, 0)


def test_the_progress_ends_with_nothing_left_and_counts_no_file_that_cannot_be_graded(simulated, capsys):
    progress = tool.Progress(simulated)
    for name, deserved in simulated.truth.items():
        for student, points in deserved.items():
            if points is not None:
                progress.say(name, student, "done")
    cut = sum(points is None for deserved in simulated.truth.values() for points in deserved.values())
    last = capsys.readouterr().out.splitlines()[-1]
    assert cut > 0 and last.startswith(f"[{40 - cut}/{40 - cut}, ") and "about 0 s left" in last


def test_those_for_the_platform_are_of_many_kinds_and_chapters(tmp_path):
    chosen = tool.choose_for_platform(tool.SimulatedClass.at(tmp_path / "class", 200, 0), 10)
    assert len({name for name, _ in chosen}) >= 9 and len({student[4:] for _, student in chosen}) == 10
