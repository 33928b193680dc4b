"""One submission where there is no class, as Gradescope's autograder has it (`make gradescope` packs all it needs).

    python -m course_lib.grading.marks.gradescope NAME FOLDER COURSE FILE

FOLDER is what a student handed in, COURSE has nbgrader_config.py, solutions/NAME and exercises/NAME, FILE is the
results.json of https://gradescope-autograders.readthedocs.io/en/latest/specs/. The same steps are taken as for a class,
in a copy of the course that is gone afterwards, so the marks are the same. Namespaces are used where the machine allows
any; Gradescope's containers do not, and then the result says what is missing. Where the file that was handed in could
not be judged the score is 0 and the reason stands first; where the fault may be ours nothing is written at all, which
Gradescope reports to the teacher as a failure of the grader.
"""

import json
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from course_lib.grading.marks import batch
from course_lib.grading.marks.standing import CourseFolder, Standing, Status, standings
from course_lib.grading.report import Verdict

STUDENT = "student"


class NotJudged(RuntimeError):
    """Nothing can be said of the submission, and it is not the student's fault."""


def results(standing: Standing) -> dict[str, Any]:
    """results.json. NotJudged where the grader may be at fault."""
    shown = {"visibility": "visible", "stdout_visibility": "hidden"}
    if standing.status in (Status.NO_NOTEBOOK, Status.UNREADABLE, Status.NOTHING):
        words = [f"Not graded: {standing.status.word}.", *([f"{standing.why}."] if standing.why else []),
                 "Hand in again."]
        return {"output": " ".join(words), **shown, "score": 0.0, "tests": []}
    record = standing.record
    late = record is not None and any(each.verdict == Verdict.NOT_JUDGED.value[0] for each in record.exercises)
    if record is None or standing.status is not Status.GRADED and not (late and standing.status is Status.BY_HAND):
        raise NotJudged(f"{standing.student}: {standing.status.word}: {standing.why}")
    lines = [*standing.notes, f"random inputs of seed {record.seed}",
             *(f"graded with less protection: {line}" for line in record.missing)]
    tests = [{"number": each.number, "name": each.function, "score": each.points, "max_score": each.out_of,
              "status": "passed" if each.points == each.out_of else "failed", "output": each.text}
             for each in record.exercises]
    by_hand = {} if standing.mark in (None, record.points) else {"score": standing.mark}  # or a penalty
    return {"output": "\n".join(lines), **shown, **by_hand, "tests": tests,
            "extra_data": {"seed": record.seed, "missing_protections": list(record.missing)}}


def copy_course(course: Path, submission: Path, name: str, target: Path) -> None:
    """The course with this one submission in it, at `target`."""
    for part in ("nbgrader_config.py", ".grading_key"):
        shutil.copy(course / part, target)
    for part in ("solutions", "exercises"):
        shutil.copytree(course / part / name, target / part / name)
    shutil.copytree(submission, target / "submitted" / STUDENT / name, symlinks=True,
                    ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "solutions"))
    for path in (target / "submitted").rglob("*"):
        if path.is_symlink():  # it would lead out of what was handed in
            path.unlink()


def main(name: str, submission: Path, course: Path, file: Path) -> int:
    """Grade and write the file; 1, and no file, where nothing could be judged and the fault may be ours."""
    file.unlink(missing_ok=True)  # an old result is no result of this one
    with TemporaryDirectory(prefix="course-") as folder:
        copy_course(course, submission, name, Path(folder))
        with chdir(folder):
            batch.main([name, "--quiet", "--", "--TrustedGrade.isolation=auto"])
            standing, = standings(CourseFolder.at(), name)
    try:
        file.write_text(json.dumps(results(standing), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except NotJudged as error:
        print(f"not written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(Path(each).resolve() for each in sys.argv[2:])))
