"""One record, and of it what Gradescope, Classroom 50 and a leaderboard ask for: the same points everywhere."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from course_lib.grading.marks.platforms import NotJudged, classroom50, gradescope, leaderboard
from course_lib.grading.marks.record import ExerciseMark, Figure, Record
from course_lib.grading.marks.standing import Standing, Status

MARKS = (ExerciseMark("2.1", "f", "correct", 4.0, 4, "✓ 2.1", figures=(Figure("sends", 6.0, 4.0, "bytes"),)),
         ExerciseMark("2.2", "g", "right, but over budget", 1.5, 3, "◐ 2.2"),
         ExerciseMark("2.10", "h", "not written yet", 0.0, 2, "○ 2.10"))
RECORD = Record(MARKS, 7, 0.5, missing=("no namespaces",))
GRADED = Standing("ada", Status.GRADED, record=RECORD, points=5.5, out_of=9.0)
UNREADABLE = Standing("cy", Status.UNREADABLE, "the file is empty", out_of=9.0)
RUNNER = {"CLASSROOM": "ml", "ASSIGNMENT": "collectives", "SUBMISSION_TAG": "submit/2026-06-01T14-32-05Z-a1b2c3d",
          "COMMIT_URL": "https://host/commit/1", "RELEASE_URL": "https://host/releases/1", "OWNER": "ada"}
NOW = datetime(2026, 6, 1, 14, 33, 11, tzinfo=UTC)


def test_gradescope_gets_each_exercise_with_its_points_and_hears_what_protection_is_missing():
    found = gradescope(GRADED)
    assert [(each["number"], each["score"], each["max_score"]) for each in found["tests"]] == [
        ("2.1", 4.0, 4), ("2.2", 1.5, 3), ("2.10", 0.0, 2)]
    assert sum(each["score"] for each in found["tests"]) == GRADED.mark and "score" not in found
    assert "graded with less protection: no namespaces" in found["output"] and "seed 7" in found["output"]
    assert found["leaderboard"] == [{"name": "2.1 sends, par is 1", "value": 1.5, "order": "asc"}]


def test_classroom_50_gets_whole_numbers_in_the_shape_of_its_schema():
    found = classroom50(GRADED, RUNNER, NOW)
    assert (found["score"], found["max-score"]) == (11, 18)  # twice 5.5 and 9
    assert all(type(each[key]) is int for each in (found, *found["tests"]) for key in ("score", "max-score"))
    # required and allowed by result-v1.schema.json, which takes no other keys
    assert set(found) == {"schema", "classroom", "assignment", "assignment_type", "owner", "submission", "commit",
                          "release", "review", "datetime", "score", "max-score", "tests"}
    assert found["schema"] == "classroom50/result/v1" and found["datetime"] == "2026-06-01T14:33:11Z"
    assert found["review"] == RUNNER["COMMIT_URL"]
    assert [each["passed"] for each in found["tests"]] == [True, False, False]
    assert all({"test-name", "passed", "score", "max-score"} <= each.keys() for each in found["tests"])


def test_classroom_50_is_refused_without_its_runners_names_and_for_points_that_no_factor_makes_whole():
    with pytest.raises(ValueError, match="CLASSROOM, ASSIGNMENT"):
        classroom50(GRADED, {})
    odd = replace(GRADED, record=replace(GRADED.record, exercises=(replace(MARKS[0], points=1 / 3),)))
    with pytest.raises(ValueError, match="no whole number"):
        classroom50(odd, RUNNER, NOW)


def test_a_file_that_cannot_be_judged_says_why_before_anything_else():
    assert gradescope(Standing("ada", Status.NOTHING))["output"] == "Not graded: nothing handed in. Hand in again."
    found = gradescope(UNREADABLE)
    assert found["score"] == 0 and found["output"] == "Not graded: unreadable. the file is empty. Hand in again."
    (test,) = classroom50(UNREADABLE, RUNNER, NOW)["tests"]
    assert not test["passed"] and test["output"] == found["output"] and test["max-score"] == 18


@pytest.mark.parametrize("status", [Status.OUR_FAULT, Status.FAILED, Status.INTERRUPTED, Status.NOT_YET,
                                    Status.AGAIN, Status.BY_HAND])
def test_where_the_fault_may_be_ours_nothing_is_written(status):
    record = GRADED.record if status in (Status.OUR_FAULT, Status.AGAIN, Status.BY_HAND) else None
    for write in (gradescope, lambda standing: classroom50(standing, RUNNER, NOW)):
        with pytest.raises(NotJudged, match=status.word):
            write(Standing("ada", status, record=record, out_of=9.0))


def test_points_by_hand_and_a_penalty_count_on_every_platform():
    late = replace(GRADED, points=GRADED.record.points + 1, penalty=0.5)
    assert (gradescope(late)["score"], classroom50(late, RUNNER, NOW)["score"]) == (6.0, 12)


def test_a_leaderboard_has_the_best_first_beside_par_and_the_exercises_in_order():
    better = replace(MARKS[0], figures=(Figure("sends", 4.0, 4.0, "bytes"),))
    late = replace(MARKS[2], figures=(Figure("sends", 1.0, 2.0, "bytes"),))
    bob = replace(GRADED, student="bob", record=replace(GRADED.record, exercises=(better, late)))
    boards = leaderboard({"02": [GRADED, bob, UNREADABLE]})["boards"]
    assert list(boards) == ["2.1 f: sends", "2.10 h: sends"]
    assert [(row["student"], row["beside_par"]) for row in boards["2.1 f: sends"]] == [("bob", 1.0), ("ada", 1.5)]
