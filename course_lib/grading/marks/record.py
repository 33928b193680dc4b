"""One graded submission as data: the one format from which the table and Gradescope's file are written.

TrustedGrade puts it into the metadata of the notebook that it has graded. nbgrader writes that file last of all, after
the gradebook, so a notebook with a record is graded to the end, and one without was interrupted.
"""

import codecs
import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

KEY = "course_marks"  # in a notebook's metadata
FORMAT = 1
SECRET = ".grading_key"  # in the course's folder: with it the same submission gets the same seed, which nobody can know


@dataclass(frozen=True)
class ExerciseMark:
    """What one exercise got, and why."""

    number: str  # "2.1"
    function: str
    verdict: str  # Report's words: "correct", "not written yet"
    points: float
    out_of: float
    text: str  # the whole report, as the student reads it
    cause: str = ""
    broken: str = ""  # what went wrong on the grader's side; then nothing can be said about the answer
    tried: str = ""  # what its code did outside of its task, as far as it let itself be seen


@dataclass(frozen=True)
class Record:
    """A graded submission."""

    exercises: tuple[ExerciseMark, ...]
    seed: int  # of the random inputs
    over_budget: float  # share of the points for what is right and over budget
    missing: tuple[str, ...] = ()  # protections that this machine does not give, a sentence each
    restored: tuple[str, ...] = ()  # what was done to cells that were doubled, deleted or renamed
    digest: str = ""  # of the file that was handed in

    @property
    def points(self) -> float:
        """Of all exercises, as they were judged; points by hand are in the gradebook."""
        return sum(each.points for each in self.exercises)

    @property
    def broken(self) -> dict[str, str]:
        """By number, exercises that could not be judged and why."""
        return {each.number: each.broken for each in self.exercises if each.broken}

    def as_json(self) -> dict[str, Any]:
        """For a notebook's metadata or a file."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of_json(cls, data: Any) -> "Record | None":
        """None for what is no record of this format."""
        try:
            if data["format"] != FORMAT:
                return None
            names = [field.name for field in fields(ExerciseMark)]  # an older record has more, which nothing reads
            exercises = tuple(ExerciseMark(**{name: each[name] for name in names if name in each})
                              for each in data["exercises"])
            lists = {name: tuple(data[name]) for name in ("missing", "restored")}
            return cls(exercises, data["seed"], data["over_budget"], **lists, digest=data["digest"])
        except (KeyError, TypeError):
            return None


def put_record(notebook: NotebookNode, record: Record) -> None:
    """Leave the record in the metadata of a graded notebook."""
    notebook.metadata[KEY] = record.as_json()


def record_at(path: Path) -> Record | None:
    """The record in a graded notebook; None where grading did not come so far."""
    try:
        return Record.of_json(json.loads(path.read_text(encoding="utf-8"))["metadata"][KEY])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def key_of(course: Path) -> bytes:
    """The key of a course's random inputs, which only teachers have; made where there is none."""
    path = course / SECRET
    if not path.is_file() or not path.stat().st_size:
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text().encode()


def digest_of(path: Path) -> str:
    """Of a file's bytes behind a byte order mark; "" where there is no file. Another one: somebody handed in again."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
