"""`python -m course_lib.grading.report`: the marks of a course's folder in one of the forms that people ask for."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.grading.marks import platforms, table
from course_lib.grading.marks.standing import CourseFolder, Standing, standings

EXAMPLES = """
--csv NAME            the report, and marks/NAME.csv: a mark where all was judged, else an empty field and a status
--gradescope NAME     marks/NAME/gradescope/STUDENT.json, which is Gradescope's results.json
--classroom50 NAME    marks/NAME/classroom50/STUDENT.json, which is Classroom 50's result.json
--leaderboard         marks/leaderboard.json: open exercises of all assignments, each beside par

Nothing is graded here: `make grade NAME=...` does that.
"""


def main(arguments: list[str]) -> int:
    """Write what is asked for; 1 where something could not be written because it was not judged."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.grading.report", description=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="assignments such as 02_collectives; all by default")
    form = parser.add_mutually_exclusive_group(required=True)
    for each in ("csv", "gradescope", "classroom50", "leaderboard"):
        form.add_argument(f"--{each}", dest="form", action="store_const", const=each)
    parser.add_argument("--course", type=Path, default=Path(), help="the course's folder, here by default")
    parser.add_argument("--student", help="this one alone")
    parser.add_argument("--to", type=Path, help="with --student: the file to write")
    asked = parser.parse_args(arguments)
    if asked.to and not (asked.student and len(asked.names) == 1):
        parser.error("--to needs --student and one NAME")
    course = CourseFolder.at(asked.course)
    if not course.has_gradebook():
        parser.error(f"there is no gradebook in {course.root}: name the course's folder with --course")
    found = {name: standings(course, name) for name in asked.names or course.assignments()}
    if asked.form == "csv":
        for name, each in found.items():
            path = table.write_csv(course, name, each)
            print(f"{table.report(name, each)}\nThe table: {path}")
        return 0
    if asked.form == "leaderboard":
        print(write(course.root / "marks" / "leaderboard.json", platforms.leaderboard(found)))
        return 0
    make = platforms.gradescope if asked.form == "gradescope" else (
        lambda standing: platforms.classroom50(standing, os.environ))
    return max([write_each(course, name, each, make, asked) for name, each in found.items()], default=0)


def write_each(course: CourseFolder, name: str, found: list[Standing], make: Callable[[Standing], dict[str, Any]],
               asked: argparse.Namespace) -> int:
    """A file for each student, or for the one that is asked for; 1 where somebody was not judged."""
    those = [each for each in found if asked.student in (None, each.student)]
    if not those:
        raise SystemExit(f"there is no student {asked.student!r} in {name}: expected one of "
                         f"{', '.join(each.student for each in found) or 'none'}")
    status = 0
    for standing in those:
        path = asked.to or course.root / "marks" / name / asked.form / f"{standing.student}.json"
        try:
            print(write(path, make(standing)))
        except platforms.NotJudged as error:
            print(f"not written: {error}", file=sys.stderr)
            status = 1
    return status


def write(path: Path, data: dict[str, Any]) -> Path:
    """JSON at `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path)
    return path
