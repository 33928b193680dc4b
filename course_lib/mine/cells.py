"""A reader's notebook as code: its cells, which cell answers which exercise, and the names that they define.

A cell that defines the function of an exercise is compiled under the name "5.5 in 05_tensor_parallel.ipynb". So every
frame on the stack, and every line of a traceback, says whose code it is.
"""

import ast
import builtins
import linecache
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import nbformat

from course_lib.grading import recorded
from course_lib.grading.trusted.inside.student_code import defines, parse, uses_ipython

ANSWER = re.compile(r"(\d+\.\d+) in (\S+\.ipynb)")


@dataclass(frozen=True)
class Cell:
    """`label` is the file name in tracebacks; `number` the exercise that the cell answers, "" for a cell of helpers."""

    label: str
    number: str
    source: str


@dataclass(frozen=True)
class Notebook:
    """The code cells of one chapter's exercises, without those that check."""

    name: str
    chapter: int
    cells: tuple[Cell, ...]


def read_notebook(path: Path) -> Notebook:
    """ValueError for a file that is no notebook of exercises, such as 05_tensor_parallel.ipynb."""
    try:
        chapter = int(path.stem[:2])
        found = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    except Exception as error:
        raise ValueError(f"{path} cannot be read ({error}): expected a notebook of exercises, such as "
                         "05_tensor_parallel/05_tensor_parallel.ipynb") from error
    number_of = {function: number for number, (function, _) in recorded.of_chapter(chapter)["exercises"].items()}
    cells = []
    for place, cell in enumerate(found, 1):
        if not cell.metadata.get("nbgrader", {}).get("grade"):
            number = next((number_of[name] for name in functions_in(cell.source) if name in number_of), "")
            label = f"{number} in {path.name}" if number else f"cell {place} of {path.name}"
            cells.append(Cell(label, number, cell.source))
    return Notebook(path.name, chapter, tuple(cells))


def functions_in(source: str) -> list[str]:
    """The functions that a cell defines at its top level; none where it is no Python."""
    try:
        return [node.name for node in parse(source).body if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError):
        return []


def run_cells(notebook: Notebook, modules: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """(names that the cells define, what a cell raised by its label). What follows a cell that raises still runs.

    modules: given to the cells' imports instead of the modules of these names, torch and torch.distributed say.
    """
    names: dict[str, Any] = {"__name__": "your_answers"}
    if modules:
        names["__builtins__"] = {**vars(builtins), "__import__": importer(modules)}
    errors: dict[str, Exception] = {}
    for cell in notebook.cells:
        linecache.cache[cell.label] = (len(cell.source), None, cell.source.splitlines(True), cell.label)
        try:
            for statement in statements(cell):
                exec(statement, names)
        except Exception as error:
            errors[cell.label] = error
    return names, errors


def statements(cell: Cell) -> list[CodeType]:
    """What of a cell runs: of an answer all, of others what gives names to things, as the class grader has it."""
    return [compile(ast.Module([node], []), cell.label, "exec", dont_inherit=True) for node in parse(cell.source).body
            if (cell.number or defines(node)) and not uses_ipython(node)]


def importer(modules: Mapping[str, Any]) -> Any:
    """An `__import__` that gives out `modules` by their full names."""
    def give(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = __import__(name, globals, locals, fromlist, level)
        return modules.get(name if fromlist else name.partition(".")[0], found)

    return give


# Whose code

def answer_on_stack(frame: FrameType | None) -> str:
    """The exercise whose answer is the innermost one that runs at `frame`; "" where none does."""
    while frame is not None:
        if found := ANSWER.fullmatch(frame.f_code.co_filename):
            return found[1]
        frame = frame.f_back
    return ""


def answer_in_traceback(traceback: TracebackType | None) -> tuple[str, str]:
    """(the innermost exercise, notebook and line) that an exception came through; two times "" where it is in none."""
    found = "", ""
    while traceback is not None:
        if match := ANSWER.fullmatch(traceback.tb_frame.f_code.co_filename):
            found = match[1], f"{match[2]}, line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
