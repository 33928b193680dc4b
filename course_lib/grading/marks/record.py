"""One graded submission as data: the one format from which every table and every platform's file is written.

TrustedGrade puts it into the metadata of the notebook that it has graded. nbgrader writes that file last of all, after
the gradebook, so a notebook with a record is graded to the end, and one without was interrupted.
"""

import hashlib
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

KEY = "course_marks"  # in a notebook's metadata
FORMAT = 1
SECRET = ".grading_key"  # in the course's folder: with it the same submission gets the same seed, which nobody can know


@dataclass(frozen=True)
class Figure:
    """What an answer used of one budget on a trial, the mean of those that are the same for everybody."""

    what: str  # "sends", as in spent.py
    measured: float
    allowed: float
    unit: str  # "bytes", "share", "" or what is counted


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
    figures: tuple[Figure, ...] = ()  # of an open exercise, each beside par


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
    def out_of(self) -> float:
        """Points that could be had."""
        return sum(each.out_of for each in self.exercises)

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
            exercises = tuple(ExerciseMark(**{**each, "figures": tuple(Figure(**one) for one in each["figures"])})
                              for each in data["exercises"])
            lists = {name: tuple(data[name]) for name in ("missing", "restored")}
            return cls(exercises, data["seed"], data["over_budget"], **lists, digest=data["digest"])
        except (KeyError, TypeError):
            return None


def put_record(notebook: NotebookNode, record: Record) -> None:
    """Leave the record in the metadata of a graded notebook."""
    notebook.metadata[KEY] = record.as_json()


def drop_record(notebook: NotebookNode) -> None:
    """Whatever a student may have written there."""
    notebook.metadata.pop(KEY, None)


def record_in(notebook: dict[str, Any]) -> Record | None:
    """The record of a graded notebook (as JSON has it), None where there is none."""
    metadata = notebook.get("metadata")
    return Record.of_json(metadata.get(KEY)) if isinstance(metadata, dict) else None


def key_of(course: Path) -> bytes:
    """The key of a course's random inputs, which only teachers have; made where there is none."""
    path = course / SECRET
    if not path.is_file() or not path.stat().st_size:
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
    return path.read_text().encode()


def digest_of(path: Path) -> str:
    """Of a file's bytes; "" where there is no file. Another one means that somebody has handed in again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""
