"""What the notebooks in solutions/ have: the solutions' names and cells, the hints beside them, and what answers do in
a training run. The tables of answers there are read by answers.py.
"""

import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = {int(path.name[:2]): path for path in sorted((ROOT / "solutions").glob("*/*.ipynb"))}
HINTS_OF = re.compile(r"^## (\d+\.\d+)\b.*\n", re.MULTILINE)
WORK_OF = re.compile(r"^\*\*In training\*\* \(.*\) your function (.+)\.$", re.MULTILINE)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells
            if cell.cell_type == "code" and "nbgrader" in cell.metadata]  # progress() is nobody's exercise


@cache
def names_of(path: Path) -> dict[str, Any]:
    """What the cells of a notebook define, check cells left out."""
    names: dict[str, Any] = {"__name__": path.stem}
    for cell in code_cells(path):
        if not cell.metadata.nbgrader.grade:
            exec(compile(cell.source, f"{path.stem}-{cell.id}", "exec"), names)
    return names


def solution_cell(path: Path, number: str) -> str:
    """The cell of the notebook at `path` that defines the function of an exercise."""
    return next(cell.source for cell in code_cells(path) if f"def {exercises(path)[number][0]}(" in cell.source)


def exercises(path: Path) -> dict[str, tuple[str, int]]:
    """(function, points) by number, from the check cells of the notebook at `path`."""
    found = {}
    for cell in code_cells(path):
        if cell.metadata.nbgrader.grade:
            number, function = re.match(r'check\("([\d.]+)", (\w+)\)', cell.source).groups()
            found[number] = (function, cell.metadata.nbgrader.points)
    return found


def work(path: Path) -> dict[str, str]:
    """What the answers do in a training run, by number, of those whose text says so."""
    found = {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown" and (text := WORK_OF.search(cell.source)):
            found[re.match(r"## ([\d.]+) ", cell.source)[1]] = text[1]
    return found


def hints(path: Path) -> dict[str, list[str]]:
    """By exercise, from hints.md beside the notebook: `## 2.1 ...`, then three hints, numbered `1.` to `3.`.

    A hint's lines are joined to paragraphs; of a block of code (between ```) they stay. ValueError for another form.
    """
    _, *parts = HINTS_OF.split(path.with_name("hints.md").read_text(encoding="utf-8"))
    found = {}
    for number, text in zip(parts[::2], parts[1::2]):
        _, *three = re.split(r"^[123]\. ", text, flags=re.MULTILINE)
        if len(three) != 3:
            raise ValueError(f"{path.parent.name}/hints.md, {number}: {len(three)} hints, expected 3, `1.` to `3.`")
        found[number] = [as_text(hint) for hint in three]
    return found


def as_text(hint: str) -> str:
    """Lines joined, blocks of code as they are without their marks and their common indentation."""
    pieces = re.split(r"^ *```.*\n", hint, flags=re.MULTILINE)
    texts = [textwrap.dedent(piece).rstrip() if place % 2 else " ".join(piece.split())
             for place, piece in enumerate(pieces)]
    return "\n".join(filter(None, texts))
