"""A class graded for real by `make grade`'s command, killed on the way: no mark is lost, none is counted twice."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from course_lib.grading.marks.record import KEY
from course_lib.grading.marks.standing import CourseFolder, Status, standings
from tests.grading.marks.small_class import (
    ALL,
    NAME,
    OPTIONS,
    POINTS,
    environment,
    make_course,
    record_of,
    submit,
    text_of,
)


def with_wrong_rows(text):
    """All right but 1.5, which returns nothing."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if "def my_rows(" in source:
            cell["source"] = source.replace("### BEGIN SOLUTION", "return []\n    ### BEGIN SOLUTION")
    return json.dumps(notebook)


def with_forged_record(text):
    """Full marks, as a student might write them into a notebook's metadata."""
    notebook = json.loads(text)
    notebook["metadata"][KEY] = record_of(Path("nothing")).as_json()
    return json.dumps(notebook)


def command(*arguments):
    return [sys.executable, "-m", "course_lib.grading.marks.batch", NAME, "--quiet", *arguments, *OPTIONS]


def grade(course, *arguments):
    return subprocess.run(command(*arguments), cwd=course, env=environment(), capture_output=True, text=True,
                          timeout=1200)


def kill_after_first(course):
    """Start grading, and kill it without a warning when the first student is done. What it printed until then."""
    process = subprocess.Popen(command("--jobs", "2"), cwd=course, env=environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    said = process.stdout.readline() + process.stdout.readline()
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    process.stdout.close()
    return said, len(workers), alive


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = make_course(tmp_path_factory.mktemp("class"))
    solved = text_of("solutions")
    for student in ("ada", "bob"):
        submit(folder, student, solved)
    submit(folder, "wrong", with_wrong_rows(solved))
    submit(folder, "second download", solved, f"{NAME} (1).ipynb")
    submit(folder, "cut", solved[:5000])
    submit(folder, "stub", with_forged_record(text_of("exercises")))
    return folder


def marks(course):
    return {each.student: each.mark for each in standings(CourseFolder.at(course), NAME)}


TRUE_MARKS = {"ada": ALL, "bob": ALL, "second download": ALL, "wrong": ALL - POINTS["1.5"], "stub": 0.0, "cut": None}


def test_a_class_that_is_killed_and_started_again_has_every_mark_once_and_regrading_changes_none(course):
    said, num_workers, alive = kill_after_first(course)
    assert "5 submissions to grade, 2 at a time" in said and ": done" in said
    assert num_workers == 2 and alive == []
    now = {each.student: each.status for each in standings(CourseFolder.at(course), NAME)}
    assert Status.GRADED in now.values() and {Status.INTERRUPTED, Status.NOT_YET} & {*now.values()}
    partly = marks(course)
    assert all(mark in (None, TRUE_MARKS[student]) for student, mark in partly.items())
    done = grade(course, "--jobs", "2")
    graded_before = sum(mark is not None for mark in partly.values())
    assert f"{5 - graded_before} submission" in done.stdout, done.stderr[-3000:]
    assert done.returncode == 0 and marks(course) == TRUE_MARKS
    assert "cut: the file ends in the middle" in done.stdout
    again = grade(course, "--again", "--student", "wrong")
    assert "1 submission to grade" in again.stdout and marks(course) == TRUE_MARKS
    nothing = grade(course)
    assert "0 submissions to grade" in nothing.stdout and marks(course) == TRUE_MARKS
    with open(course / "marks" / f"{NAME}.csv", newline="", encoding="utf-8") as file:
        table = {row["student"]: row for row in csv.DictReader(file)}
    assert {student: row["mark"] for student, row in table.items()} == {
        student: "" if mark is None else f"{mark:g}" for student, mark in TRUE_MARKS.items()}
    assert table["wrong"]["1.5"] == "0" and table["ada"]["1.5"] == f"{POINTS['1.5']}"
