"""A class graded for real by `make grade`'s command, killed on the way: no mark is lost, none is counted twice."""

import csv
import os
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import AutogradeApp

from course_lib.grading.marks.gradescope import results
from course_lib.grading.marks.standing import CourseFolder, Status, standings
from tests.grading.courses import ISOLATION, ROOT, run_here
from tests.grading.small_class import ALL, NAME, POINTS, submit, text_of, three, with_wrong_rows

TRUE_MARKS = {"right": ALL, "wrong": ALL - POINTS["1.5"], "stub": 0.0}


def test_a_loop_without_end_is_open_and_has_no_points_before_a_teacher_has_looked(made_course, tmp_path):
    folder = shutil.copytree(made_course, tmp_path / "class")
    submit(folder, "loop", with_wrong_rows(text_of("solutions"), "while True: pass"))
    run_here(AutogradeApp(), folder, NAME, "--TrustedGrade.time_limit_s=4", ISOLATION)
    course = CourseFolder.at(folder)
    with Gradebook(course.db_url) as gradebook:
        assert gradebook.find_submission(NAME, "loop").needs_manual_grade
        grade = gradebook.find_grade("check_rows", NAME, NAME, "loop")
        assert grade.auto_score is None and grade.needs_manual_grade
        assert gradebook.find_submission(NAME, "loop").score == ALL - POINTS["1.5"]  # which nbgrader exports
        waiting, = standings(course, NAME)
        assert (waiting.status, waiting.mark, waiting.remarks) == (
            Status.BY_HAND, None, ["1.5 was not judged, its time was up"])
        shown = results(waiting)
        assert sum(each["score"] for each in shown["tests"]) == ALL - POINTS["1.5"] and "score" not in shown
        assert "only the time limit speaks" in shown["tests"][4]["output"]
        grade.manual_score, grade.needs_manual_grade = 1.0, False
        gradebook.db.commit()
    assert marks(folder) == {"loop": ALL - POINTS["1.5"] + 1.0}


def table_of(course):
    with open(course / "marks" / f"{NAME}.csv", newline="", encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_a_class_of_three_gets_every_mark_in_the_gradebook_the_table_and_the_notebook(graded_class):
    with Gradebook(f"sqlite:///{graded_class / 'gradebook.db'}") as gradebook:
        assert {each.student.id: each.score for each in gradebook.assignment_submissions(NAME)} == TRUE_MARKS
    table = table_of(graded_class)
    assert {student: float(row["mark"]) for student, row in table.items()} == TRUE_MARKS
    assert all(float(table["right"][number]) == points for number, points in POINTS.items())
    assert [float(table[student]["1.5"]) for student in ("wrong", "stub")] == [0, 0]
    graded = (graded_class / "autograded" / "stub" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")
    assert graded.count("not written yet, 0 of") == 2 * len(POINTS)  # what is shown, and the record


def command(*arguments):
    return [sys.executable, "-m", "course_lib.grading.marks.batch", NAME, "--quiet", *arguments, "--", ISOLATION]


def started(course, *arguments, **more):
    return subprocess.Popen(command(*arguments), cwd=course, text=True, stdout=subprocess.PIPE,
                            env=os.environ | {"PYTHONPATH": str(ROOT)}, **more)


def grade(course, *arguments):
    process = started(course, *arguments, stderr=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=1200)
    return process.returncode, stdout, stderr[-3000:]


def kill_after_first(course):
    """Start grading, and kill it without a warning when the first student is done. What it printed until then."""
    process = started(course, "--jobs", "2", stderr=subprocess.DEVNULL)
    printed = process.stdout.readline() + process.stdout.readline()
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    process.stdout.close()
    return printed, len(workers), alive


@pytest.fixture
def course(made_course, tmp_path):
    folder = shutil.copytree(made_course, tmp_path / "class")
    for student, text in three().items():
        submit(folder, student, text)
    submit(folder, "second download", "\ufeff" + text_of("solutions"), f"{NAME} (1).ipynb")  # as some editors write
    submit(folder, "cut", text_of("solutions")[:5000])
    return folder


def marks(course):
    return {each.student: each.mark for each in standings(CourseFolder.at(course), NAME)}


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_a_class_that_is_killed_and_started_again_has_every_mark_once_and_regrading_changes_none(course):
    deserved = TRUE_MARKS | {"second download": ALL, "cut": None}
    printed, num_workers, alive = kill_after_first(course)
    assert "4 submissions to grade, 2 at a time" in printed and ": done" in printed
    assert num_workers == 2 and alive == []
    now = {each.student: each.status for each in standings(CourseFolder.at(course), NAME)}
    assert Status.GRADED in now.values() and {Status.INTERRUPTED, Status.NOT_YET} & {*now.values()}
    partly = marks(course)
    assert all(mark in (None, deserved[student]) for student, mark in partly.items())
    code, done, errors = grade(course, "--jobs", "2")
    assert f"{4 - sum(mark is not None for mark in partly.values())} submission" in done, errors
    assert code == 0 and marks(course) == deserved and "cut: the file is no notebook, or its upload was cut off" in done
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:  # a point given by hand, as formgrader does it
        gradebook.find_grade("check_rows", NAME, NAME, "wrong").manual_score = 1.0
        gradebook.db.commit()
    deserved["wrong"] += 1.0
    for arguments, to_grade in ((("--again", "--student", "wrong"), 1), ((), 0)):
        _, done, _ = grade(course, *arguments)
        assert f"{to_grade} submission" in done and marks(course) == deserved
    assert {student: row["mark"] for student, row in table_of(course).items()} == {
        student: "" if mark is None else f"{mark:g}" for student, mark in deserved.items()}
