"""Students of chapter 1: what they hand in, and records as TrustedGrade leaves them. courses.py has their folders."""

import json
from pathlib import Path

from course_lib.grading.marks.record import KEY, ExerciseMark, Record, digest_of
from course_lib.grading.registry import exercises_of
from tests.grading import submissions

NAME = "01_why_distribute"
POINTS = {each.number: each.points for each in exercises_of(1)}
ALL = sum(POINTS.values())


def text_of(part: str) -> str:
    """The notebook of "exercises" or "solutions"."""
    return (submissions.ROOT / part / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")


def with_wrong_rows(text: str, line: str = "return []") -> str:
    """All right but 1.5, which returns nothing; with another first `line`, does that."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if "def my_rows(" in source:
            cell["source"] = source.replace("### BEGIN SOLUTION", f"{line}\n    ### BEGIN SOLUTION")
    return json.dumps(notebook)


def with_forged_record(text: str) -> str:
    """Full marks, as a student might write them into a notebook's metadata."""
    notebook = json.loads(text)
    notebook["metadata"][KEY] = record_of(Path("nothing")).as_json()
    return json.dumps(notebook)


def three() -> dict[str, str]:
    """What the smallest class hands in: everything right, nothing, and all but one."""
    return {"right": text_of("solutions"), "stub": with_forged_record(text_of("exercises")),
            "wrong": with_wrong_rows(text_of("solutions"))}


def submit(course: Path, student: str, text: str, file: str = "") -> Path:
    return submissions.submit(course, student, text, NAME, file)


def record_of(path: Path, broken: str = "") -> Record:
    """A right submission's record."""
    marks = [ExerciseMark(number, "f", "correct", points, points, "✓", broken=broken * (number == "1.2"))
             for number, points in POINTS.items()]
    return Record(tuple(marks), 1, 0.5, digest=digest_of(path))


def put_graded(course: Path, student: str, record: Record | None) -> None:
    """The graded notebook, with its record where there is one."""
    path = course / "autograded" / student / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = json.loads(text_of("solutions"))
    notebook["metadata"] |= {KEY: record.as_json()} if record else {}
    path.write_text(json.dumps(notebook), encoding="utf-8")
