"""A graded submission for the platform that a school has: every form is written from the same record.

Gradescope: https://gradescope-autograders.readthedocs.io/en/latest/specs/ (results.json). Classroom 50:
https://github.com/foundation50/classroom50, wiki/Advanced-Autograding.md and schemas/result-v1.schema.json, read on
2026-11-26 (result.json). Both show a student a number at once. Where the file that was handed in could not be judged
that number is 0 and the reason stands first; where the fault may be ours nothing is written at all, which both
platforms report to the teacher as a failure of the grader.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from course_lib.grading.marks.record import ExerciseMark, Figure
from course_lib.grading.marks.standing import Standing, Status

ASKED_OF_CLASSROOM = {"classroom": "CLASSROOM", "assignment": "ASSIGNMENT", "submission": "SUBMISSION_TAG",
                      "commit": "COMMIT_URL", "release": "RELEASE_URL"}
LEAST_POINTS = 100  # denominators of a share of points, at most


class NotJudged(RuntimeError):
    """Nothing can be said of the submission, and it is not the student's fault."""


def words_about(standing: Standing) -> str:
    """What a student hears about the whole submission. NotJudged where the fault may be the grader's."""
    if standing.status in (Status.NO_NOTEBOOK, Status.UNREADABLE, Status.NOTHING):
        why = [f"{standing.why}."] if standing.why else []
        return " ".join([f"Not graded: {standing.status.word}.", *why, "Hand in again."])
    if standing.record is None or standing.status is not Status.GRADED:
        raise NotJudged(f"{standing.student}: {standing.status.word}: {standing.why}")
    lines = [standing.note, ", ".join(standing.remarks), f"random inputs of seed {standing.record.seed}",
             *(f"graded with less protection: {line}" for line in standing.record.missing)]
    return "\n".join(filter(None, lines))


def gradescope(standing: Standing) -> dict[str, Any]:
    """results.json. NotJudged where the grader may be at fault."""
    output = words_about(standing)
    whole: dict[str, Any] = {"output": output, "visibility": "visible", "stdout_visibility": "hidden"}
    if standing.record is None:
        return {**whole, "score": 0.0, "tests": []}
    tests = [{"number": each.number, "name": each.function, "score": each.points, "max_score": each.out_of,
              "status": "passed" if each.points == each.out_of else "failed", "output": each.text}
             for each in standing.record.exercises]
    board = [{"name": f"{each.number} {figure.what}, par is 1", "value": beside_par(figure), "order": "asc"}
             for each in standing.record.exercises for figure in each.figures]
    if standing.mark is not None and standing.mark != standing.record.points:  # points by hand, a penalty
        whole["score"] = standing.mark
    return {**whole, "tests": tests, **({"leaderboard": board} if board else {}),
            "extra_data": {"seed": standing.record.seed, "missing_protections": list(standing.record.missing)}}


def classroom50(standing: Standing, environment: Mapping[str, str], now: datetime | None = None) -> dict[str, Any]:
    """result.json of schema classroom50/result/v1. Its scores are whole numbers, so where half the points can be had
    all points count twice. ValueError where the runner's variables are missing; NotJudged as for Gradescope.
    """
    missing = [name for name in ASKED_OF_CLASSROOM.values() if not environment.get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} not set: Classroom 50's runner sets them before it calls an autograder")
    output = words_about(standing)
    marks = standing.record.exercises if standing.record else ()
    share = Fraction(standing.record.over_budget).limit_denominator(LEAST_POINTS) if standing.record else Fraction(1, 2)
    factor = share.denominator
    tests = [{"test-name": f"{each.number} {each.function}", "passed": each.points == each.out_of,
              "score": whole_number(each.points * factor), "max-score": whole_number(each.out_of * factor),
              "output": each.text} for each in marks]
    if not tests:
        tests = [{"test-name": "a notebook that can be graded", "passed": False, "score": 0,
                  "max-score": whole_number(standing.out_of * factor), "output": output}]
    return {"schema": "classroom50/result/v1",
            **{field: environment[name] for field, name in ASKED_OF_CLASSROOM.items()},
            "assignment_type": environment.get("ASSIGNMENT_TYPE") or "individual",
            "owner": environment.get("OWNER") or environment.get("USERNAME") or standing.student,
            "review": environment.get("REVIEW_URL") or environment["COMMIT_URL"],
            "datetime": (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "score": sum(each["score"] for each in tests) if standing.mark is None
            else whole_number(standing.mark * factor), "max-score": sum(each["max-score"] for each in tests),
            "tests": tests}


def whole_number(points: float) -> int:
    """ValueError for points that the factor did not make whole."""
    if abs(points - round(points)) > 1e-6:
        raise ValueError(f"{points:g} points are no whole number, which Classroom 50 asks for: choose an over_budget "
                         "such as 0.5, or 0.25")
    return round(points)


def beside_par(figure: Figure) -> float:
    """What was used of what our own best answer uses: 1 is par, less is better."""
    return round(figure.measured / figure.allowed, 6) if figure.allowed else float(figure.measured)


def leaderboard(standings_of: Mapping[str, list[Standing]]) -> dict[str, Any]:
    """By open exercise, everybody with a right answer, the best first, as used on the same trials by everybody.

    standings_of: by assignment. The figures are counted inside the ranks: exact, the same on every machine, and no
    proof; no mark depends on them.
    """
    boards: dict[str, list[dict[str, Any]]] = {}
    for found in standings_of.values():
        for standing in found:
            for mark in standing.record.exercises if standing.record else ():
                for figure in mark.figures:
                    boards.setdefault(f"{mark.number} {mark.function}: {figure.what}", []).append(entry(
                        standing, mark, figure))
    return {"format": 1, "par": 1.0, "boards": {name: sorted(rows, key=lambda row: (row["beside_par"], row["student"]))
                                                for name, rows in sorted(boards.items(), key=place)}}


def place(board: tuple[str, list]) -> list[int]:
    """2.10 comes after 2.9."""
    return [int(part) for part in board[0].split()[0].split(".")]


def entry(standing: Standing, mark: ExerciseMark, figure: Figure) -> dict[str, Any]:
    """One line of a leaderboard."""
    return {"student": standing.student, "beside_par": beside_par(figure), "measured": figure.measured,
            "par": figure.allowed, "unit": figure.unit, "points": mark.points}
