"""The pages that repeat what stands elsewhere: written from there by tools/templates/, so that they stay true.

    python -m tools.pages    docs/documents.md and ERRATA.md, from docs/documents.toml, docs/errata.toml and
                             course_lib/facts/claims.py; docs/teaching/polls.md, every prediction as a question for a
                             class, and struggles.md, the mistakes of solutions/*/answers.py in the words that a
                             learner reads; README's minutes and hours, by the rule of minutes.py
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import jinja2
import nbformat

from course_lib.facts.claims import CLAIMS
from course_lib.grading.registry import exercises_of
from tools.minutes import NOTEBOOKS, ROOT, minutes_of, read, round_to_five
from tools.solutions import SOLUTIONS

README = ROOT / "README.md"
FOLDER = ROOT / "docs" / "teaching"
MINUTES_PER_POINT = 5  # of an exercise: a guess to plan with, nobody was timed
FURTHER = re.compile(r" \(further( reading)?\)$")


@cache
def parts(notebook: Path) -> tuple[tuple[int, str, str], ...]:
    """(level, heading, what stands under it up to the next heading of any level), in order. Code cells are there with
    what they print; a heading in a block of code is none.
    """
    texts = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        printed = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in
                   cell.get("outputs", [])]
        texts.append("\n".join(["```", cell.source, *printed, "```"]) if cell.cell_type == "code" else cell.source)
    text = "\n".join(texts)
    prose = re.sub(r"```.*?```", lambda block: " " * len(block[0]), text, flags=re.DOTALL)
    begins = list(re.finditer(r"^(#+) (.+)$", prose, re.MULTILINE))
    ends = [*(match.start() for match in begins[1:]), len(text)]
    return tuple((len(match[1]), match[2], text[match.end():end]) for match, end in zip(begins, ends))


def notebook_of(cell: str) -> tuple[Path, str]:
    """(its file, the heading) of "NN Heading", with or without the "(further)" behind it. ValueError where there is no
    such notebook or no such heading.
    """
    number, heading = cell.split(" ", 1)
    notebook = next((path for path in NOTEBOOKS if path.name.startswith(f"{number}_")), None)
    headings = [each for _, each, _ in parts(notebook)] if notebook else []
    for each in headings:
        if FURTHER.sub("", each) == FURTHER.sub("", heading):
            return notebook, each
    raise ValueError(f"{cell!r}: expected one of the headings of {notebook and notebook.name}: {', '.join(headings)}")


def section(cell: str) -> str:
    """The text of a section with its subsections; each run of blanks and line breaks is one blank."""
    notebook, heading = notebook_of(cell)
    later = list(dropwhile(lambda part: part[1] != heading, parts(notebook)))
    inside = takewhile(lambda part: part is later[0] or part[0] > later[0][0], later)
    return " ".join(" ".join(text for _, _, text in inside).split())


def link(cell: str, up: str = "../") -> str:
    """A link to "NN Heading"; up: from the page to the root."""
    notebook, heading = notebook_of(cell)
    return f"[{notebook.name[:2]} {heading}]({up}notebooks/{notebook.name}#{heading.replace(' ', '-')})"


def table_of(name: str) -> list[dict[str, Any]]:
    """The entries of docs/NAME.toml."""
    return tomllib.loads((ROOT / f"docs/{name}.toml").read_text(encoding="utf-8"))[name]


def errata() -> list[dict[str, str]]:
    """The course's own, oldest first."""
    return sorted(table_of("errata"), key=lambda erratum: (erratum["mended"], erratum["where"]))


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


def struggles(number: str) -> list[str]:
    """What a learner reads of each wrong answer to an exercise, none twice."""
    from tools.answers import rows  # loads torch

    return list(dict.fromkeys(" ".join(row.says.split()) for row in rows(SOLUTIONS[int(number.split(".")[0])], "wrong",
                                                                         number)))


def with_times(readme: str) -> str:
    """README's text with the minutes of each notebook, the hours of all, and the number of exercises that there are."""
    notebooks = {path: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
    for path, notebook in notebooks.items():
        readme = re.sub(rf"^(\| \[{path.stem}\]\(.*?\| )[^|]*( \| [^|]* \|)$", rf"\g<1>{minutes_of(notebook)}\g<2>",
                        readme, flags=re.MULTILINE)
    both = [read(notebook) for notebook in notebooks.values()]
    core = sum(round_to_five(each) for sittings, _ in both for each in sittings)
    further = sum(round_to_five(each) for _, each in both)
    points = [each.points for chapter in SOLUTIONS for each in exercises_of(chapter)]
    hours = f"about {round(core / 60)} hours to read and run, and {round(further / 60)} more"
    readme = re.sub(r"about \d+ hours to read and run, and \d+ more", hours, readme)
    planned = f"For the {len(points)} exercises plan {10 * round(MINUTES_PER_POINT * sum(points) / 600)} hours"
    return re.sub(r"For the \d+ exercises plan [\d.]+ hours", planned, readme)


TEMPLATE_FOLDER = Path(__file__).parent / "templates"
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATE_FOLDER), trim_blocks=True, lstrip_blocks=True,
                               keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
TEMPLATES.filters |= {"link": link, "cell": lambda text: text.replace("|", "\\|")}
TEMPLATES.tests["contains"] = lambda numbers, number: number in numbers


def rendered(name: str, **values: Any) -> str:
    """The text of tools/templates/NAME.j2."""
    return TEMPLATES.get_template(f"{name}.j2").render(values)


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "docs/documents.md": lambda: rendered("documents.md", documents=table_of("documents"), claims=CLAIMS),
    ROOT / "ERRATA.md": lambda: rendered("errata.md", errata=errata(), claims=CLAIMS),
    FOLDER / "polls.md": lambda: rendered("polls.md", polls={path: list(polls_in(path)) for path in NOTEBOOKS}),
    FOLDER / "struggles.md": lambda: rendered("struggles.md", struggles=struggles, exercises={
        path.stem: exercises_of(chapter) for chapter, path in SOLUTIONS.items()}),
    README: lambda: with_times(README.read_text(encoding="utf-8")),
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
