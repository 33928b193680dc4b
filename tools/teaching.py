"""The pages for teachers that repeat what stands elsewhere: written from there, so that they stay true.

    python -m tools.teaching --write     docs/teaching/plans.md, polls.md and struggles.md, and README's hours

plans.md has the three plans of docs/teaching/plans.toml with minutes by the rule of tools/minutes.py; polls.md every
prediction of the notebooks as a question for a class; struggles.md, by chapter, the mistakes of
solutions/*/wrong_answers.py in the words that a learner reads.
"""

import argparse
import ast
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True)
class Poll:
    """One prediction of a notebook."""

    notebook: str  # "02"
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
                given = {each.arg: each.value for each in call.keywords}
                unit = ast.literal_eval(given["unit"]) if "unit" in given else ""
                yield Poll(path.stem[:2], node.targets[0].id, ast.literal_eval(call.args[0]), unit,
                           words_of(given.get("options"), constants))


def words_of(options: ast.expr | None, constants: dict[str, Any]) -> tuple[str, ...]:
    """The options that a notebook gives. NameError where they need more than the constants of their cell."""
    if options is None:
        return ()
    return tuple(eval(compile(ast.Expression(options), "options", "eval"), {"__builtins__": {}, **constants}))


@cache
def polls() -> dict[tuple[str, str], list[Poll]]:
    """All of them, by notebook and variable: a notebook may use a name twice."""
    found: dict[tuple[str, str], list[Poll]] = {}
    for path in NOTEBOOKS:
        for poll in polls_in(path):
            found.setdefault((poll.notebook, poll.variable), []).append(poll)
    return found


@cache
def reading_minutes(part: str) -> int:
    """Of "02", the core of a notebook; of "03:1" one sitting."""
    number, _, sitting = part.partition(":")
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith(number)]
    sittings, _ = read(nbformat.read(path, as_version=4))
    chosen = [sittings[int(sitting) - 1]] if sitting else sittings
    return sum(round_to_five(each.minutes) for each in chosen)


def points_of(number: str) -> int:
    """What an exercise is worth. KeyError for one that there is not."""
    return {each.number: each.points for each in exercises_of(int(number.partition(".")[0]))}[number]


def exercise_minutes(numbers: list[str]) -> int:
    """To plan with."""
    return MINUTES_PER_POINT * sum(map(points_of, numbers))


PLANS_BEGIN = """# Course plans

Written by `python -m tools.teaching --write` from `docs/teaching/plans.toml`. Minutes of reading are those of README's
table, by a rule that nobody was timed for; an exercise is planned with {} minutes for each of its points. *Ask* is a
prediction of the notebook: put it to the class as a poll before the cell that answers it ([all of them](polls.md)).
"""
PLAN_TABLE = ["| when | notebooks | minutes | exercises (minutes) | show | ask |", "|---|---|---|---|---|---|"]


def plans_page() -> str:
    """docs/teaching/plans.md."""
    plans = tomllib.loads((FOLDER / "plans.toml").read_text(encoding="utf-8"))["plan"]
    lines = [PLANS_BEGIN.format(MINUTES_PER_POINT)]
    for plan in plans:
        lines += [f"## {plan['title']}", "", plan["intro"].strip(), "", *PLAN_TABLE]
        reading = doing = 0
        for session in plan["session"]:
            minutes, extra = minutes_of_session(session)
            reading, doing = reading + minutes, doing + extra
            lines.append(session_row(session, minutes, extra))
        lines += ["", f"In all {reading} minutes{f' of reading and {doing} of exercises' * bool(doing)}.", ""]
    return "\n".join(lines)


def minutes_of_session(session: dict) -> tuple[int, int]:
    """(of reading, of exercises besides): where a session's minutes are given, its exercises are done in them."""
    if "minutes" in session:
        return session["minutes"], 0
    return sum(map(reading_minutes, session.get("read", []))), exercise_minutes(session.get("exercises", []))


def session_row(session: dict, minutes: int, extra: int) -> str:
    """A line of a plan's table."""
    parts = ", ".join(map(name_part, session.get("read", [])))
    exercises = ", ".join(session.get("exercises", [])) + f" ({extra})" * bool(extra)
    asked = "<br>".join(str(find_poll(name)) for name in session.get("ask", []))
    return f"| {session['when']} | {parts} | {minutes or ''} | {exercises} | {session.get('show', '')} | {asked} |"


def name_part(part: str) -> str:
    """ "03:1" in words."""
    number, _, sitting = part.partition(":")
    return f"{number}, sitting {sitting}" if sitting else number


def find_poll(name: str) -> Poll:
    """ "02:ring_guess". KeyError for one that there is not; the first where a notebook has several."""
    number, _, variable = name.partition(":")
    return polls()[number, variable][0]


POLLS_BEGIN = """# Predictions as polls

Written by `python -m tools.teaching --write` from the notebooks. Put a question to the class, wait until everybody has
an answer, then run the cell: the notebook sets what was measured beside what you lock in. Ask first *why*, of those who
were far off and of those who were right. Answers are not here: the notebook's next cells have them.
"""
STRUGGLES_BEGIN = """# Common struggles

Written by `python -m tools.teaching --write` from `solutions/*/wrong_answers.py`. Each line is a mistake that was
recorded, in the words that `check` and the class's feedback say to whoever gives the same. Before a chapter's class
read its lines, and ask the question that each of them answers. A mistake that you see and that is not here:
[add it](../contributing/exercises.md).
"""


def polls_page() -> str:
    """docs/teaching/polls.md."""
    lines = [POLLS_BEGIN]
    for path in NOTEBOOKS:
        found = list(polls_in(path))
        if found:
            lines += [f"## [{path.stem}](../../notebooks/{path.name})", "", *(f"- {poll}" for poll in found), ""]
    return "\n".join(lines)


def struggles_page() -> str:
    """docs/teaching/struggles.md."""
    lines = [STRUGGLES_BEGIN]
    for chapter, path in SOLUTIONS.items():
        lines += [f"## {path.stem}", ""]
        for exercise in exercises_of(chapter):
            own = rows(path, "wrong", exercise.number)
            said = list(dict.fromkeys(" ".join(each.says.split()) for each in own))
            lines += [f"**{exercise.number} {exercise.function}**", "", *(f"- {each}" for each in said), ""]
    return "\n".join(lines)


def with_hours(readme: str) -> str:
    """README's text with the hours of reading and the number of exercises that there are."""
    parts = [read(nbformat.read(path, as_version=4)) for path in NOTEBOOKS]
    core = sum(round_to_five(each.minutes) for sittings, _ in parts for each in sittings)
    further = sum(round_to_five(each.minutes) for _, each in parts)
    numbers = [each.number for chapter in SOLUTIONS for each in exercises_of(chapter)]
    hours = f"about {round(core / 60)} hours to read and run, and {round(further / 60)} more"
    readme = re.sub(r"about \d+ hours to read and run, and \d+ more", hours, readme)
    planned = f"For the {len(numbers)} exercises plan {10 * round(exercise_minutes(numbers) / 600)} hours"
    return re.sub(r"For the \d+ exercises plan [\d.]+ hours", planned, readme)


PAGES = {"plans.md": plans_page, "polls.md": polls_page, "struggles.md": struggles_page}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.teaching", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the pages; otherwise say which are not up to date")
    asked = parser.parse_args()
    for name, make in PAGES.items():
        text, path = make().rstrip() + "\n", FOLDER / name
        if asked.write:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tools.teaching --write")
    readme = README.read_text(encoding="utf-8")
    if asked.write:
        README.write_text(with_hours(readme), encoding="utf-8")
    elif readme != with_hours(readme):
        print("README.md's hours are not up to date: python -m tools.teaching --write")


if __name__ == "__main__":
    main()
