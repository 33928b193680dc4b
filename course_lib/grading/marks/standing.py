"""Where every student of a class stands with an assignment: graded, or in words why not.

nbgrader's own table has 0.0 for whoever was not graded, whatever the reason. Here a mark is a number only where every
exercise was judged; in all other cases it is empty, with a status.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry

from course_lib.grading.marks.handed_in import HandedIn, take_in
from course_lib.grading.marks.record import Record, digest_of, record_in


class Status(Enum):
    """A word for the table and a sentence for whoever has to look. `open`: grading would change it."""

    GRADED = ("graded", "")
    BY_HAND = ("waits for marks by hand", "enter them in formgrader")
    NOTHING = ("nothing handed in", "")
    NO_NOTEBOOK = ("no notebook", "ask for it, or put it into the folder")
    UNREADABLE = ("unreadable", "ask for the file again")
    NOT_YET = ("not graded yet", "grade")
    INTERRUPTED = ("grading was interrupted", "grade again")
    AGAIN = ("handed in again since", "grade again")
    FAILED = ("could not be graded", "the message says why; grade again when that is mended")
    OUR_FAULT = ("an exercise could not be run", "the fault may be the grader's: grade again, or look at the message")

    @property
    def word(self) -> str:
        """As the table says it."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What a teacher can do; "" for nothing."""
        return self.value[1]

    @property
    def is_open(self) -> bool:
        """Whether `make grade` takes it up."""
        return self in (Status.NOT_YET, Status.INTERRUPTED, Status.AGAIN, Status.FAILED, Status.OUR_FAULT)


# What a teacher wants to see in a list, by words of the cause.
REMARKS = (("hung", ("did not finish within", "did not end within")), ("crashed", ("ended without an answer",)),
           ("did not parse", ("does not parse",)), ("took too much memory", ("MemoryError", "allocate memory")))


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
        """Exercises that hung, crashed or did not parse, and cells that had to be restored."""
        if self.record is None:
            return []
        found = [f"{each.number} {remark}" for each in self.record.exercises for remark, words in REMARKS
                 if any(word in each.cause for word in words)]
        count = len(self.record.restored)
        return found + [f"{count} cell{'s' * (count > 1)} restored"] * bool(count)


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

    def last_try(self, student: str, name: str) -> Path:
        """What `make grade` remembers of a student: how long it took, and an error."""
        return self.root / ".grading" / name / f"{student}.json"

    def assignments(self) -> list[str]:
        """Those that nbgrader knows, in order."""
        with Gradebook(self.db_url) as gradebook:
            return sorted(each.name for each in gradebook.assignments)

    def knows(self, name: str) -> bool:
        """Whether nbgrader has made the assignment, so that its points are in the gradebook."""
        return self.has_gradebook() and name in self.assignments()

    def has_gradebook(self) -> bool:
        """Whether nbgrader has made one; it would make an empty one of whatever it is asked."""
        return (self.root / "gradebook.db").exists()


def grade_ids(course: CourseFolder, name: str) -> frozenset[str]:
    """nbgrader's ids of the cells that were given out, as far as it has noted them."""
    with Gradebook(course.db_url) as gradebook, suppress(MissingEntry):
        return frozenset(cell.name for cell in gradebook.find_notebook(name, name).source_cells)
    return frozenset()


def standings(course: CourseFolder, name: str) -> list[Standing]:
    """Of every student that nbgrader knows or that has a folder, by id. ValueError for an unknown assignment."""
    if not course.knows(name):
        raise ValueError(f"there is no assignment {name!r} in {course.root / 'gradebook.db'}: make it first, with "
                         f"`nbgrader generate_assignment {name} --force`")
    found = take_in(course.root / "submitted", name, grade_ids(course, name))
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
    if record is not None:
        if record.digest != digest_of(course.submitted_notebook(student, name)):
            return Status.AGAIN, ""
        broken = "; ".join(f"{number}: {why}" for number, why in record.broken.items())
        return (Status.OUR_FAULT, broken) if broken else (Status.GRADED, "")
    if error := last_error(course, name, student):
        return Status.FAILED, error
    if course.graded_notebook(student, name).parent.exists():
        return Status.INTERRUPTED, ""
    return Status.NOT_YET, ""


def record_at(path: Path) -> Record | None:
    """The record in a graded notebook; None where grading did not come so far."""
    try:
        return record_in(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError):
        return None


def last_error(course: CourseFolder, name: str, student: str) -> str:
    """Why the last attempt at this very file failed; "" where none did."""
    try:
        kept = json.loads(course.last_try(student, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return kept.get("error", "") if kept.get("digest") == digest_of(course.submitted_notebook(student, name)) else ""
