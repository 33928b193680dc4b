"""One submission where there is no class: what the autograder of a platform calls.

    python -m course_lib.grading.marks.alone NAME FOLDER --course COURSE (--gradescope|--classroom50) --to FILE

FOLDER is what a student handed in, COURSE has nbgrader_config.py, solutions/NAME and exercises/NAME. The same steps are
taken as for a class, in a copy of the course that is gone afterwards, so the marks are the same. Namespaces are used
where the machine allows any; most platforms' containers do not, and then the result says what is missing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.grading.marks import command

STUDENT = "student"
PARTS = ("nbgrader_config.py", "solutions", "exercises", "gradebook.db", ".grading_key")


def copy_course(course: Path, submission: Path, name: str, target: Path) -> None:
    """The course with this one submission in it, at `target`."""
    for part in PARTS:
        source = course / part
        if source.is_dir():
            shutil.copytree(source / name, target / part / name)
        elif source.exists():
            shutil.copy(source, target / part)
    shutil.copytree(submission, target / "submitted" / STUDENT / name, symlinks=True,
                    ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "solutions"))
    for path in (target / "submitted").rglob("*"):
        if path.is_symlink():  # it would lead out of what was handed in
            path.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Grade and write the platform's file; 1, and no file, where nothing could be judged and the fault may be ours."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.grading.marks.alone", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="an assignment such as 02_collectives")
    parser.add_argument("submission", type=Path, help="the folder that was handed in")
    parser.add_argument("--course", type=Path, required=True)
    form = parser.add_mutually_exclusive_group(required=True)
    for each in ("gradescope", "classroom50"):
        form.add_argument(f"--{each}", dest="form", action="store_const", const=f"--{each}")
    parser.add_argument("--to", type=Path, required=True, help="the file to write")
    asked = parser.parse_args(arguments)
    asked.to.unlink(missing_ok=True)  # an old result is no result of this one
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        copy_course(asked.course, asked.submission, asked.name, Path(folder))
        subprocess.run([sys.executable, "-m", "course_lib.grading.marks.batch", asked.name, "--quiet", "--",
                        "--TrustedGrade.isolation=auto"], cwd=folder)
        return command.main([asked.form, asked.name, "--course", folder, "--student", STUDENT,
                             "--to", str(asked.to.resolve())])


if __name__ == "__main__":
    sys.exit(main())
