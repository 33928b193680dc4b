"""Where every student of a class stands with an assignment: graded, or in words why not; and the table of all.

nbgrader's own table has 0.0 for whoever was not graded, whatever the reason. Here a mark is a number only where every
exercise was judged; in all other cases it is empty, with a status.
"""

import csv
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from statistics import mean

from nbgrader.api import Gradebook, MissingEntry

from course_lib.grading.marks.handed_in import UNSEEN, HandedIn, take_in
from course_lib.grading.marks.record import ExerciseMark, Record, digest_of, record_at

COLUMNS = ("student", "last_name", "first_name", "email", "mark", "out_of", "points", "late_penalty", "status", "why",
           "note")
# What a teacher wants to see in a list, by words of the cause.
REMARKS = (("hung", ("it hangs:",)), ("crashed", ("ended without an answer",)), ("did not parse", ("does not parse",)),
           ("was not judged, its time was up", ("did not finish within", "did not end within", "take longer than")),
           ("took too much memory", ("MemoryError", "allocate memory")),
           ("made its judge fail", ("not of the form that was asked (",)))


class Status(Enum):
    """The table's word, what a teacher can do ("" for nothing), and whether it is open: `make grade` takes it up."""

    GRADED = ("graded", "", False)
    BY_HAND = ("waits for marks by hand", "enter them in formgrader", False)
    NOTHING = ("nothing handed in", "", False)
    NO_NOTEBOOK = ("no notebook", "ask for it, or put it into the folder", False)
    UNREADABLE = ("unreadable", "ask for the file again", False)
    NOT_YET = ("not graded yet", "grade", True)
    INTERRUPTED = ("grading was interrupted", "grade again", True)
    AGAIN = ("handed in again since", "grade again", True)
    FAILED = ("could not be graded", "the message says why; grade again when that is mended", True)
    OUR_FAULT = ("an exercise could not be run", "the fault may be the grader's: grade again, or look at the message",
                 True)

    def __init__(self, word: str, remedy: str, is_open: bool) -> None:
        self.word, self.remedy, self.is_open = word, remedy, is_open


@dataclass(frozen=True)
class Standing:
    """One student and one assignment."""

    student: str
    status: Status
    why: str = ""  # the particular of the status
    note: str = ""  # what else a teacher should know
    record: Record | None = None
    points: float | None = None  # with what was entered by hand; None where not everything was judged
    penalty: float = 0.0
    out_of: float = 0.0
    first_name: str = ""
    last_name: str = ""
    email: str = ""

    @property
    def mark(self) -> float | None:
        """Points less the penalty for being late, never below 0."""
        return None if self.points is None else max(0.0, self.points - self.penalty)

    @property
    def remarks(self) -> list[str]:
        """Exercises that hung, crashed, did not parse or tried what is not their task, and cells that were restored."""
        if self.record is None:
            return []
        found = [f"{each.number} {remark}" for each in self.record.exercises for remark, words in REMARKS
                 if any(word in each.cause for word in words)]
        found += [f"{each.number} tried: {each.tried}" for each in self.record.exercises if each.tried]
        count = len(self.record.restored)
        return found + [f"{count} cell{'s' * (count > 1)} restored"] * bool(count)

    @property
    def notes(self) -> list[str]:
        """All that a teacher should know besides the mark."""
        return [each for each in (self.note, ", ".join(self.remarks)) if each]


@dataclass(frozen=True)
class CourseFolder:
    """A teacher's folder, laid out as nbgrader has it; db_url: its gradebook."""

    root: Path
    db_url: str

    @classmethod
    def at(cls, root: Path | str = ".") -> "CourseFolder":
        """The course in the folder `root`."""
        root = Path(root).resolve()
        return cls(root, f"sqlite:///{root / 'gradebook.db'}")

    def submitted_notebook(self, student: str, name: str) -> Path:
        """The notebook that the student handed in."""
        return self.root / "submitted" / student / name / f"{name}.ipynb"

    def graded_notebook(self, student: str, name: str) -> Path:
        """The notebook as nbgrader has graded it."""
        return self.root / "autograded" / student / name / f"{name}.ipynb"

    def last_error(self, student: str, name: str) -> Path:
        """What `make grade` remembers of a grading that failed."""
        return self.root / ".grading" / name / f"{student}.json"

    def knows(self, name: str) -> bool:
        """Whether nbgrader has made the assignment, so that its points are in the gradebook."""
        if not (self.root / "gradebook.db").exists():  # nbgrader would make an empty one
            return False
        with Gradebook(self.db_url) as gradebook:
            return name in {each.name for each in gradebook.assignments}

    def grade_ids(self, name: str) -> frozenset[str]:
        """nbgrader's ids of the cells that were given out, as far as it has noted them."""
        with Gradebook(self.db_url) as gradebook, suppress(MissingEntry):
            return frozenset(cell.name for cell in gradebook.find_notebook(name, name).source_cells)
        return frozenset()


def standings(course: CourseFolder, name: str) -> list[Standing]:
    """Of every student that nbgrader knows or that has a folder, by id. ValueError for an unknown assignment."""
    if not course.knows(name):
        raise ValueError(f"there is no assignment {name!r} in {course.root / 'gradebook.db'}: make it first, with "
                         f"`nbgrader generate_assignment {name} --force`")
    found = take_in(course.root / "submitted", name, course.grade_ids(name))
    with Gradebook(course.db_url) as gradebook:
        students = {each.id: each for each in gradebook.students}
        out_of = float(gradebook.find_assignment(name).max_score)
        return [standing_of(course, name, student, found.get(student), gradebook, students.get(student), out_of)
                for student in sorted(found.keys() | students.keys())]


def standing_of(course: CourseFolder, name: str, student: str, handed_in: HandedIn | None, gradebook: Gradebook,
                person: object, out_of: float) -> Standing:
    """Of one student; `person` is nbgrader's, None where it has never met them."""
    names = {key: getattr(person, key, None) or "" for key in ("first_name", "last_name", "email")}
    record = record_at(course.graded_notebook(student, name))
    status, why = status_of(course, name, student, handed_in, record)
    points, penalty = None, 0.0
    if status is Status.GRADED:
        try:
            submission = gradebook.find_submission(name, student)
        except MissingEntry:  # somebody took it out of the gradebook
            status, why = Status.NOT_YET, "it is not in the gradebook"
        else:
            points, penalty = float(submission.score), float(submission.late_submission_penalty or 0.0)
            # nbgrader also asks to look again at automatic marks that a teacher has replaced.
            waiting = [each.name for notebook in submission.notebooks for each in notebook.grades
                       if each.auto_score is None and each.manual_score is None]
            if waiting:
                status, why, points = Status.BY_HAND, ", ".join(waiting), None
    return Standing(student, status, why, handed_in.note if handed_in else "", record, points, penalty, out_of, **names)


def status_of(course: CourseFolder, name: str, student: str, handed_in: HandedIn | None, record: Record | None
              ) -> tuple[Status, str]:
    """The status from the files alone, and its particular."""
    if handed_in is None:
        return Status.NOTHING, ""
    if handed_in.notebook is None:
        return Status.NO_NOTEBOOK, handed_in.problem
    if handed_in.problem:
        return Status.UNREADABLE, handed_in.problem
    digest = digest_of(course.submitted_notebook(student, name))
    if record is not None:
        if record.digest != digest:
            return Status.AGAIN, ""
        broken = "; ".join(f"{number}: {why}" for number, why in record.broken.items())
        return (Status.OUR_FAULT, broken) if broken else (Status.GRADED, "")
    with suppress(OSError, ValueError):
        failed = json.loads(course.last_error(student, name).read_text(encoding="utf-8"))
        if failed.get("digest") == digest:
            return Status.FAILED, failed["error"]
    if course.graded_notebook(student, name).parent.exists():
        return Status.INTERRUPTED, ""
    return Status.NOT_YET, ""


def write_csv(course: CourseFolder, name: str, found: list[Standing]) -> Path:
    """Write marks/NAME.csv in the course's folder, a line for each student; its path."""
    numbers = list(dict.fromkeys(each.number for one in found if one.record for each in one.record.exercises))
    path = course.root / "marks" / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, (*COLUMNS, *numbers))
        rows.writeheader()
        rows.writerows(row(each) for each in found)
    return path


def row(standing: Standing) -> dict[str, str]:
    """One student's fields; the exercises' own, as they were judged, by number. What nobody judged is empty, not 0."""
    judged = standing.record.exercises if standing.record and standing.points is not None else ()
    numbers = {"mark": standing.mark, "out_of": standing.out_of, "points": standing.points,
               "late_penalty": standing.penalty if standing.points is not None else None,
               **{each.number: each.points for each in judged}}
    texts = {name: getattr(standing, name) for name in ("student", "last_name", "first_name", "email", "why")}
    return {"status": standing.status.word, "note": one_line("; ".join(standing.notes)),
            **{name: one_line(value) for name, value in texts.items()},
            **{name: "" if value is None else f"{value:g}" for name, value in numbers.items()}}


def one_line(value: str) -> str:
    """On one line, without what steers a terminal, and nothing that a spreadsheet would take for a formula, also behind
    a semicolon, where some countries' spreadsheets begin the next field: parts of it come from students.
    """
    value = " ".join(re.sub(f"[{UNSEEN}]", " ", value.encode(errors="replace").decode()).split())
    return re.sub(r"(^|;\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])", r"\1'", value)


def spread(found: list[Standing]) -> list[str]:
    """A line for each exercise: of how many students it has all its points, some, or none."""
    by_number: dict[str, list[ExerciseMark]] = {}
    for each in found:
        for exercise in each.record.exercises if each.record and each.points is not None else ():
            by_number.setdefault(exercise.number, []).append(exercise)
    return [f"    {number} {marks[0].function}: " + ", ".join(f"{count} {word}" for word, count in (
                ("all points", sum(mark.points == mark.out_of for mark in marks)),
                ("some", sum(0 < mark.points < mark.out_of for mark in marks)),
                ("none", sum(mark.points == 0 for mark in marks))) if count) for number, marks in by_number.items()]


def report(name: str, found: list[Standing]) -> str:
    """Who is graded, who is not and why, and which exercises crashed, hung or did not parse."""
    marks = [each.mark for each in found if each.mark is not None]
    counted = Counter(each.status for each in found)
    first = ", ".join(f"{counted[status]} {status.word}" for status in Status if counted[status])
    lines = [f"{name}, {len(found)} student{'s' * (len(found) != 1)}: {first or 'nobody yet'}"]
    if marks:
        lines += [f"marks from {min(marks):g} to {max(marks):g} of {found[0].out_of:g}, "
                  f"{mean(marks):.1f} on average", *spread(found)]
    for status in Status:
        those = [each for each in found if each.status is status]
        if status in (Status.GRADED, Status.NOTHING) or not those:
            continue
        lines.append(f"{status.word}{f' ({status.remedy})' * bool(status.remedy)}:")
        lines += [f"    {one_line(each.student)}{f': {one_line(each.why)}' * bool(each.why)}" for each in those]
    if nothing := [each.student for each in found if each.status is Status.NOTHING]:
        lines.append(f"nothing handed in: {', '.join(map(one_line, nothing))}")
    if remarked := [each for each in found if each.notes]:
        lines.append("perhaps worth a look:")
        lines += [f"    {one_line(each.student)}: {one_line('; '.join(each.notes))}" for each in remarked]
    protections = dict.fromkeys(line for each in found if each.record for line in each.record.missing)
    return "\n".join(lines + [f"graded with less protection: {line}" for line in protections])
