"""The pages for teachers that repeat what stands elsewhere: written from there, so that they stay true.

    python -m tools.teaching --write     docs/teaching/polls.md and struggles.md, and README's hours

polls.md has every prediction of the notebooks as a question for a class; struggles.md, by chapter, the mistakes of
solutions/*/wrong_answers.py in the words that a learner reads.
"""

import argparse
import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from course_lib.grading.registry import exercises_of
from tools.answers import rows
from tools.minutes import NOTEBOOKS, README, read, round_to_five
from tools.solutions import SOLUTIONS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "teaching"
MINUTES_PER_POINT = 5  # of an exercise: a guess to plan with, nobody was timed
POLLS = """\
# Predictions as polls

Written by `python -m tools.teaching --write` from the notebooks. Put a question to the class, wait until everybody has
an answer, then run the cell: the notebook sets what was measured beside what you lock in. Ask first *why*, of those who
were far off and of those who were right. Answers are not here: the notebook's next cells have them.
"""
STRUGGLES = """\
# Common struggles

Written by `python -m tools.teaching --write` from `solutions/*/wrong_answers.py`. Each line is a mistake that was
recorded, in the words that `check` and the class's feedback say to whoever gives the same. Before a chapter's class
read its lines, and ask the question that each of them answers. A mistake that you see and that is not here:
[add it](../contributing/exercises.md).
"""


@dataclass(frozen=True)
class Poll:
    """One prediction of a notebook."""

    variable: str
    question: str
    unit: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        choice = f" ({' / '.join(self.options)})" if self.options else f" (in {self.unit})" if self.unit else ""
        return f"{self.question}{choice}"


def polls_in(path: Path) -> Iterator[Poll]:
    """The predictions of a notebook, in order: assignments of `predict("a question", ...)`."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code" or "predict(" not in cell.source:
            continue
        constants: dict[str, Any] = {}  # of the cell, which the options may name
        for node in ast.parse(cell.source).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            with suppress(ValueError):
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            call = node.value
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "predict":
                given = {each.arg: ast.unparse(each.value) for each in call.keywords}
                unit, options = (eval(given.get(name, "()"), {"__builtins__": {}, **constants})
                                 for name in ("unit", "options"))
                yield Poll(node.targets[0].id, ast.literal_eval(call.args[0]), unit or "", tuple(options))


def polls_page() -> Iterator[str]:
    """The lines of polls.md."""
    yield POLLS
    for path in NOTEBOOKS:
        if found := list(polls_in(path)):
            yield f"## [{path.stem}](../../notebooks/{path.name})\n"
            yield from (f"- {poll}" for poll in found)
            yield ""


def struggles_page() -> Iterator[str]:
    """The lines of struggles.md."""
    yield STRUGGLES
    for chapter, path in SOLUTIONS.items():
        yield f"## {path.stem}\n"
        for exercise in exercises_of(chapter):
            yield f"**{exercise.number} {exercise.function}**\n"
            own = [" ".join(each.says.split()) for each in rows(path, "wrong", exercise.number)]
            yield from (f"- {each}" for each in dict.fromkeys(own))
            yield ""


def with_hours(readme: str) -> str:
    """README's text with the hours of reading and the number of exercises that there are."""
    parts = [read(nbformat.read(path, as_version=4)) for path in NOTEBOOKS]
    core = sum(round_to_five(each.minutes) for sittings, _ in parts for each in sittings)
    further = sum(round_to_five(each.minutes) for _, each in parts)
    points = [each.points for chapter in SOLUTIONS for each in exercises_of(chapter)]
    hours = f"about {round(core / 60)} hours to read and run, and {round(further / 60)} more"
    readme = re.sub(r"about \d+ hours to read and run, and \d+ more", hours, readme)
    planned = f"For the {len(points)} exercises plan {10 * round(MINUTES_PER_POINT * sum(points) / 600)} hours"
    return re.sub(r"For the \d+ exercises plan [\d.]+ hours", planned, readme)


PAGES = {FOLDER / "polls.md": lambda: "\n".join(polls_page()).rstrip() + "\n",
         FOLDER / "struggles.md": lambda: "\n".join(struggles_page()).rstrip() + "\n",
         README: lambda: with_hours(README.read_text(encoding="utf-8"))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.teaching", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the pages; otherwise say which are not up to date")
    asked = parser.parse_args()
    for path, page in PAGES.items():
        text = page()
        if asked.write:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tools.teaching --write")


if __name__ == "__main__":
    main()
