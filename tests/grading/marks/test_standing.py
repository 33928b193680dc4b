"""A mark is a number where all was judged, and otherwise empty, with a status in words: nothing is silently 0."""

import csv
import shutil
from dataclasses import replace

import pytest
from nbgrader.api import Gradebook

from course_lib.grading.marks import standing
from course_lib.grading.marks.record import Record
from course_lib.grading.marks.standing import CourseFolder, Status, report, standings, write_csv
from tests.grading.small_class import ALL, NAME, POINTS, put_graded, record_of, submit, text_of


@pytest.fixture(scope="module")
def course(tmp_path_factory, made_course):
    """Somebody of every kind; nobody was really graded."""
    folder = shutil.copytree(made_course, tmp_path_factory.mktemp("standing") / "course")
    course = CourseFolder.at(folder)
    solved = text_of("solutions")
    right = submit(folder, "right", solved)
    put_graded(folder, "right", record_of(right))
    put_graded(folder, "broken", record_of(submit(folder, "broken", solved), broken="the worker is gone"))
    put_graded(folder, "again", replace(record_of(submit(folder, "again", solved)), digest="of another file"))
    submit(folder, "interrupted", solved)
    put_graded(folder, "interrupted", None)
    submit(folder, "new", solved)
    submit(folder, "cut", solved[:4000])
    (folder / "submitted" / "empty" / NAME).mkdir(parents=True)
    hung = record_of(submit(folder, "hung", solved))
    first = replace(hung.exercises[0], points=0, cause="2 ranks: it hangs: rank 0 waits", verdict="wrong",
                    tried="open /etc/passwd")
    put_graded(folder, "hung", replace(hung, exercises=(first, *hung.exercises[1:]), restored=("a", "b")))
    with Gradebook(course.db_url) as gradebook:
        gradebook.add_student("nobody", first_name="No", last_name="Body")
        for student in ("right", "broken", "again", "interrupted", "hung"):
            gradebook.update_or_create_student(student)
            submission = gradebook.update_or_create_submission(NAME, student)
            for notebook in submission.notebooks:
                for grade in notebook.grades:
                    grade.auto_score = grade.cell.max_score * (student != "interrupted")
        gradebook.db.commit()
    return course


def found(course):
    return {each.student: each for each in standings(course, NAME)}


def test_everybody_has_a_status_and_only_what_was_judged_whole_a_mark(course):
    assert {student: each.status.name for student, each in found(course).items()} == {
        "right": "GRADED", "hung": "GRADED", "broken": "OUR_FAULT", "again": "AGAIN", "new": "NOT_YET",
        "interrupted": "INTERRUPTED", "cut": "UNREADABLE", "empty": "NO_NOTEBOOK", "nobody": "NOTHING"}
    marks = {student: each.mark for student, each in found(course).items() if each.mark is not None}
    assert marks == {"right": ALL, "hung": ALL}  # the gradebook's, which a teacher may have changed


def test_the_csv_has_a_line_for_everybody_and_an_empty_mark_where_nothing_was_judged(course):
    with open(write_csv(course, NAME, standings(course, NAME)), newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["right"]["mark"] == f"{ALL}" and rows["right"]["1.1"] == f"{POINTS['1.1']}"
    for student in set(rows) - {"right", "hung"}:
        assert rows[student]["mark"] == rows[student]["1.1"] == "" and rows[student]["status"] not in ("", "graded")
    assert "cut off" in rows["cut"]["why"] and "1.2: the worker is gone" in rows["broken"]["why"]


def test_the_report_says_who_hung_and_who_has_to_be_looked_at(course):
    said = report(NAME, standings(course, NAME))
    assert f"{NAME}, 9 students: 2 graded" in said
    for line in ("hung: 1.1 hung, 1.1 tried: open /etc/passwd, 2 cells restored", "cut: the file is no notebook",
                 "nothing handed in: nobody", "1.1 f: 1 all points, 1 none", "1.2 f: 2 all points"):
        assert line in said


def test_points_by_hand_are_waited_for_and_then_count(course):
    with Gradebook(course.db_url) as gradebook:
        grade = gradebook.find_submission(NAME, "right").notebooks[0].grades[0]
        grade.auto_score, name = None, grade.name
        gradebook.db.commit()
        waiting = found(course)["right"]
        grade.manual_score = 1.0
        gradebook.db.commit()
        by_hand = found(course)["right"]
        points = POINTS[min(number for number in POINTS if grade.max_score == POINTS[number])]
        grade.manual_score, grade.auto_score = None, grade.max_score
        gradebook.db.commit()
    assert (waiting.status, waiting.why, waiting.mark) == (Status.BY_HAND, name, None)
    assert by_hand.mark == ALL - points + 1.0


def test_an_assignment_that_nobody_made_is_refused_with_the_command_that_makes_it(course):
    with pytest.raises(ValueError, match="generate_assignment 02_collectives"):
        standings(course, "02_collectives")


def test_a_record_survives_json_and_what_is_none_is_none(course, tmp_path):
    record = record_of(tmp_path / "no file")
    with_more, older = record.as_json(), record.as_json()
    for each in older["exercises"]:  # as records before 2026-12 have it
        del each["tried"]
    for each in with_more["exercises"]:  # as records of 2026-11 have it
        each["figures"] = []
    assert Record.of_json(record.as_json()) == record and record.points == ALL
    assert Record.of_json(with_more) == Record.of_json(older) == record
    assert [Record.of_json(bad) for bad in (None, {}, {"format": 1}, {"format": 99}, [])] == [None] * 5


@pytest.mark.parametrize("given, kept", [
    ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("a\nb", "a b"), ("-3", "'-3"), ("a", "a"),
    ("\t=1", "'=1"), ("\r@SUM(1)", "'@SUM(1)"), ("a;=1", "a;'=1"), ("a; +1", "a; '+1"), ("\uff1d1", "'\uff1d1"),
    ("\x00=1", "'=1"), ("a\x1b[2Jb\u202ec", "a [2Jb c"), ('"=1', '"=1'), ("O'Neill, Zo\xeb", "O'Neill, Zo\xeb")])
def test_a_students_words_are_no_formula_in_a_spreadsheet(given, kept):
    assert standing.one_line(given) == kept
