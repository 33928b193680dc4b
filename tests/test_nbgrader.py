"""A class, from the command line: the commands that TEACHING.md gives, in their order, with 7 submissions, or all."""

import csv
import html
import re
import shutil
from pathlib import Path

import pytest

from course_lib.grading.trusted import sandbox
from tests.grading.courses import FEW, ROOT, class_of, collectives_class, command_for, commands, nbgrader  # noqa: F401
from tests.grading.submissions import ALL, NAME, POINTS, SUBMISSIONS, submit

STUDENTS = pytest.mark.sweep(
    "students", few=[FEW], all=[list(SUBMISSIONS)], ids=["class"], scope="module",
    words=f"{len(FEW)} submissions of {len(SUBMISSIONS)}, and 3 that are always there")


@pytest.fixture(scope="module")
def course(tmp_path_factory, students, request):
    """A course folder with the submissions of `students` and three more, graded; tests may grade more there."""
    folder = tmp_path_factory.mktemp("class") / "course"
    if students != FEW:
        folder.mkdir()
        class_of(students)(folder)
        return folder
    return shutil.copytree(request.getfixturevalue("collectives_class"), folder)


def scores(course: Path) -> dict[str, float]:
    with open(course / "grades.csv", newline="") as file:
        return {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}


def feedback(course: Path, student: str) -> str:
    """The feedback page as text."""
    page = (course / "feedback" / student / NAME / f"{NAME}.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.mark.ci
@pytest.mark.timeout(240)
@STUDENTS
def test_everybody_gets_the_marks_that_the_work_deserves_and_leaves_nothing_outside(course, students):
    half = POINTS["2.1"] + POINTS["2.2"] + POINTS["2.5"]
    deserved = {student: SUBMISSIONS[student][1] for student in students}
    assert scores(course) == deserved | {"half": half, "hostile": 0.0, "untouched": 0.0}
    assert ALL == 27 and (course / "gradebook.db").exists()
    less = "runs with less protection" in (course / "autograde.log").read_text()
    assert less == (sandbox.why_no_namespaces() is not None) and (less or not Path("/tmp/was_here").exists())


@pytest.mark.ci
@pytest.mark.timeout(240)
@STUDENTS
def test_the_feedback_says_what_is_wrong_and_what_was_measured_and_shows_no_solution(course):
    pages = {student: feedback(course, student) for student in ("half", "hostile", "untouched", "wrong")}
    assert "not right yet, 0 of" in pages["half"] and "random inputs of seed" in pages["half"]
    assert "MB a rank" in pages["half"] or "kB a rank" in pages["half"]
    for words in ("did not finish within 10 s", "ended without an answer", "does not parse"):
        assert words in pages["hostile"]
    assert pages["untouched"].count("not written yet, 0 of") == len(POINTS)
    # whoever builds on a wrong answer is judged with a right one
    assert pages["wrong"].count("judged with a right 2.1, as yours is not") == 1
    assert "def my_ring_reduce_scatter(tensor):\n    return tensor" in pages["wrong"]
    assert "from_left" not in pages["wrong"]  # a name of the right 2.1
    assert not any(secret in pages["untouched"] for secret in ("BEGIN SOLUTION", "from_left", "TensorExercise"))


@pytest.mark.ci
@pytest.mark.timeout(240)
@STUDENTS
def test_grading_again_takes_the_same_inputs_and_another_submission_others(course):
    def seeds(student):
        return set(re.findall(r"random inputs of seed (\d+)", feedback(course, student)))

    before, other = seeds("wrong"), seeds("Zoë O'Neill")
    again = nbgrader(course, *command_for("wrong"), "--TrustedGrade.isolation=auto")
    nbgrader(course, "generate_feedback", NAME, "--student=wrong", "--force")
    assert "2.1 my_ring_reduce_scatter: not right yet" in again
    assert len(before) == 1 and seeds("wrong") == before != other


@pytest.mark.ci
@pytest.mark.timeout(240)
@STUDENTS
def test_what_cannot_be_read_is_named_as_failed_and_changes_nobody_elses_marks(course):
    before = scores(course)
    submit(course, "broken", '{"cells": [')
    printed = nbgrader(course, "autograde", NAME, "--student=broken", succeeds=False)
    assert f"There was an error processing assignment '{NAME}' for student 'broken'" in printed
    nbgrader(course, "export", "--to", "grades.csv")
    assert {student: marks for student, marks in scores(course).items() if student != "broken"} == before


def test_teaching_md_has_the_whole_way_from_release_to_table():
    assert [command[0] for command in commands()] == [
        "generate_assignment", "db", "autograde", "generate_feedback", "export"]
    assert "nbgrader zip_collect" in (ROOT / "TEACHING.md").read_text(encoding="utf-8")
