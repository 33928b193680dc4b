"""A course folder with chapter 1, the quickest to grade, and records as TrustedGrade leaves them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from course_lib.grading.marks.record import KEY, ExerciseMark, Record, digest_of
from course_lib.grading.registry import exercises_of
from course_lib.grading.trusted import sandbox

ROOT = Path(__file__).resolve().parents[3]
NAME = "01_why_distribute"
POINTS = {each.number: each.points for each in exercises_of(1)}
ALL = sum(POINTS.values())
# Where a machine has no namespaces, with less protection.
OPTIONS = ["--", f"--TrustedGrade.isolation={'required' if sandbox.why_no_namespaces() is None else 'auto'}"]


def text_of(part: str) -> str:
    """The notebook of "exercises" or "solutions"."""
    return (ROOT / part / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8")


def make_course(folder: Path) -> Path:
    """A teacher's folder with the assignment in nbgrader's gradebook."""
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / NAME, folder / part / NAME)
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", NAME, "--force"]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, timeout=600)
    return folder


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def submit(course: Path, student: str, text: str, file: str = f"{NAME}.ipynb") -> Path:
    path = course / "submitted" / student / NAME / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


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
