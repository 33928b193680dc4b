"""`find("workspace/exercises")`: the reader's answers that can train, each checked once, and a table of them."""

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from course_lib.grading import recorded
from course_lib.grading.report import Verdict
from course_lib.grading.trusted.inside.student_code import parse
from course_lib.mine.cells import Notebook, read_notebook, run_cells
from course_lib.mine.checks import check_all
from course_lib.mine.slots import SLOTS
from course_lib.pictures.drawn import Drawn

YOURS, COURSE = "yours", "the course's"


@dataclass(frozen=True)
class Part:
    """One slot: whose code it gets, and why it is not the reader's where it is not."""

    number: str
    function: str
    whose: str
    why: str = ""

    @property
    def work(self) -> str:
        """What the function does in a training run, in words."""
        return SLOTS[self.number].work


@dataclass(frozen=True, repr=False)
class Answers(Drawn):
    """What is in a folder of exercises: `parts` in the order of the chapters, and the notebooks that they are from."""

    notebooks: tuple[Notebook, ...]
    parts: tuple[Part, ...]

    @property
    def numbers(self) -> frozenset[str]:
        """The exercises whose answers train."""
        return frozenset(part.number for part in self.parts if part.whose == YOURS)

    def finding(self) -> str:
        lines = [f"{len(self.numbers)} of {len(self.parts)} parts are yours"]
        lines += [f"  {part.number} {part.function}: {part.why}" for part in self.parts if part.whose != YOURS]
        return "\n".join(lines)

    def html(self) -> str:
        rows = "".join(f"<tr>{cell(part.number)}{cell(part.function)}{cell(part.work)}{cell(part.whose)}"
                       f"{cell(part.why)}</tr>" for part in self.parts)
        head = "".join(map(cell, ("", "function", "its work in training", "whose", "why")))
        return f"<p><b>{escape(self.finding().splitlines()[0])}</b></p><table><tr>{head}</tr>{rows}</table>"


def cell(text: str) -> str:
    """A cell of the HTML table."""
    return f'<td style="text-align: left">{escape(text)}</td>'


def count_answers(folder: Path | str) -> int:
    """How many answers with a place in training are in `folder`, right or wrong; 0 where there is no such folder."""
    functions: dict[str, Any] = {}
    for notebook in notebooks_in(folder):
        look_into(notebook, functions, {})
    return len(functions)


def notebooks_in(folder: Path | str) -> tuple[Notebook, ...]:
    """The notebooks in `folder` of those chapters whose answers can train."""
    paths = [path for path in sorted(Path(folder).glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))
             if path.stem == path.parent.name]  # not a newer copy beside it
    return tuple(notebook for notebook in map(read_notebook, paths)
                 if any(int(number.partition(".")[0]) == notebook.chapter for number in SLOTS))


def find(folder: Path | str, without: Collection[str] = (), say: Callable[[str], None] = lambda text: None) -> Answers:
    """The answers in `folder`, which has 02_collectives/02_collectives.ipynb and so on, as exercises/ has.

    without: exercises whose answers are left out. say(text): tells what is being checked. Starts ranks, on the CPU.
    ValueError for a folder without notebooks, and for an exercise in `without` that has no place.
    """
    if unknown := sorted(set(without) - set(SLOTS)):
        raise ValueError(f"without {', '.join(unknown)}: expected some of {', '.join(SLOTS)}")
    notebooks = notebooks_in(folder)
    if not notebooks:
        raise ValueError(f"no exercises in {str(folder)!r}: expected 02_collectives/02_collectives.ipynb and so on, as "
                         "`make lab` makes them in workspace/exercises")
    functions: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for notebook in notebooks:
        look_into(notebook, functions, reasons)
    for number, report in check_all({n: f for n, f in functions.items() if n not in without}, say).items():
        if report.verdict not in (Verdict.CORRECT, Verdict.COSTLY):
            reasons[number] = f"{report.verdict.value[0]}: {report.cause}".rstrip(": ").partition("\n")[0]
    for number in without:
        reasons[number] = "left out, as you asked"
    return Answers(notebooks, tuple(part_of(slot.number, functions, reasons) for slot in SLOTS.values()))


def look_into(notebook: Notebook, functions: dict[str, Any], reasons: dict[str, str]) -> None:
    """The functions of the slots of this chapter, and why there is none."""
    names, errors = run_cells(notebook, {})
    written = {cell.number: cell for cell in notebook.cells if cell.number}
    for number in SLOTS:
        if int(number.partition(".")[0]) != notebook.chapter:
            continue
        name = function_of(number)
        if number not in written:
            reasons[number] = f"there is no function {name} in {notebook.name}"
        elif written[number].label in errors or name not in names:
            error = errors.get(written[number].label)
            reasons[number] = f"its cell raises {type(error).__name__}: {error}"
        elif is_stub(written[number].source, name):
            reasons[number] = Verdict.NOT_WRITTEN.value[0]
        else:
            functions[number] = names[name]


def function_of(number: str) -> str:
    """The name of the function that exercise `number` asks for."""
    return recorded.of_chapter(int(number.partition(".")[0]))["exercises"][number][0]


def is_stub(source: str, name: str) -> bool:
    """Whether the function is as it was given: it raises NotImplementedError whatever it is called with."""
    return any(isinstance(node, ast.FunctionDef) and node.name == name and any(
        isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)
        for statement in node.body) for node in parse(source).body)


def part_of(number: str, functions: dict[str, Any], reasons: dict[str, str]) -> Part:
    """Whose code does exercise `number`: the reader's, or the course's and why."""
    if number not in functions and number not in reasons:
        reasons[number] = "there is no notebook of its chapter"
    why = reasons.get(number) or next((f"it calls {function_of(other)}, which is not yours"
                                       for other in SLOTS[number].needs if other in reasons), "")
    return Part(number, function_of(number), COURSE if why else YOURS, why)
