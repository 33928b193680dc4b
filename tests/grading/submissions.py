"""What a class hands in for chapter 2: 26 submissions, each with the marks that it deserves, None where there are none.

A right notebook has all points. 2.1 alone wrong costs its own 4: 2.3, which calls it, is judged with a right one.
"""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from course_lib.grading.registry import exercises_of

NAME = "02_collectives"
POINTS = {exercise.number: exercise.points for exercise in exercises_of(2)}
ALL = sum(POINTS.values())
WITHOUT_2_1 = ALL - POINTS["2.1"]
OWN = "ring_reduce_scatter"  # the id of 2.1's solution cell
WRONG = "def my_ring_reduce_scatter(tensor):\n    return tensor\n"


def cell_of(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def with_own(source: str) -> Callable[[NotebookNode], NotebookNode]:
    """All right but 2.1, whose cell holds `source`."""
    def change(notebook: NotebookNode) -> NotebookNode:
        cell_of(notebook, OWN).source = source
        return notebook
    return change


def before_own(lines: str) -> Callable[[NotebookNode], NotebookNode]:
    """All right, with `lines` at the beginning of 2.1's function."""
    def change(notebook: NotebookNode) -> NotebookNode:
        own = cell_of(notebook, OWN)
        own.source = own.source.replace("    n, r =", f"{lines}    n, r =", 1)
        return notebook
    return change


def without(*grade_ids: str) -> Callable[[NotebookNode], NotebookNode]:
    def change(notebook: NotebookNode) -> NotebookNode:
        for grade_id in grade_ids:
            notebook.cells.remove(cell_of(notebook, grade_id))
        return notebook
    return change


def double_cell(grade_id: str, first: str = "") -> Callable[[NotebookNode], NotebookNode]:
    """The cell twice, as JupyterLab's button does it; the upper one with another source where one is given."""
    def change(notebook: NotebookNode) -> NotebookNode:
        cell = cell_of(notebook, grade_id)
        notebook.cells.insert(notebook.cells.index(cell), nbformat.from_dict({**cell, "id": "another-id", "source":
                                                                              first or cell.source}))
        return notebook
    return change


def rename_cells(notebook: NotebookNode) -> NotebookNode:
    for grade_id in (OWN, f"check_{OWN}"):
        cell_of(notebook, grade_id).metadata.nbgrader["grade_id"] = f"my_{grade_id}"
    return notebook


def strip_marks(notebook: NotebookNode) -> NotebookNode:
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)
    return notebook


def forge_hundred_points(notebook: NotebookNode) -> NotebookNode:
    check = cell_of(with_own(WRONG)(notebook), f"check_{OWN}")
    check.metadata.nbgrader["points"], check.source = 100, "1000"
    return notebook


def from_before_ids(notebook: NotebookNode) -> NotebookNode:
    notebook.nbformat_minor = 2
    for cell in notebook.cells:
        cell.pop("id", None)
    return notebook


def with_long_output(notebook: NotebookNode) -> NotebookNode:
    cell_of(notebook, OWN).outputs = [new_output("stream", text="x" * 30_000_000)]
    return notebook


def with_experiments(notebook: NotebookNode) -> NotebookNode:
    notebook.cells[2:2] = [new_code_cell("launch = 3\nwhile True: pass"), new_code_cell("%matplotlib inline\n1 / 0")]
    return notebook


def same_notebook(notebook: NotebookNode) -> NotebookNode:
    return notebook


OUTSIDE = ("    import os\n    os.system('touch /tmp/was_here')\n"
           "    os.path.exists('/etc/passwd') and open('/etc/passwd').read()\n"
           "    os.path.exists('gradebook.db') and os.remove('gradebook.db')\n")
NOISE = "    import sys, warnings\n    warnings.warn('old')\n    print('!', file=sys.stderr)\n"

SUBMISSIONS: dict[str, tuple[Callable[[NotebookNode], NotebookNode], float]] = {
    "right": (same_notebook, ALL),
    "Zoë O'Neill": (same_notebook, ALL),
    "from nbformat 4.2": (from_before_ids, ALL),
    "long output": (with_long_output, ALL),
    "wild experiments": (with_experiments, ALL),
    "wrong": (with_own(WRONG), WITHOUT_2_1),
    "does not parse": (with_own("def my_ring_reduce_scatter(tensor:\n"), WITHOUT_2_1),
    "loop in the function": (with_own("def my_ring_reduce_scatter(tensor):\n    while True: pass\n"), WITHOUT_2_1),
    "loop in the cell": (with_own(f"{WRONG}while True: pass\n"), WITHOUT_2_1),
    "memory hog": (with_own("def my_ring_reduce_scatter(tensor):\n    return bytearray(3 << 30)\n"), WITHOUT_2_1),
    "worth a hundred": (forge_hundred_points, WITHOUT_2_1),
    "prints": (before_own("    for _ in range(300): print('x' * 100_000)\n"), ALL),
    "reads and writes outside": (before_own(OUTSIDE), ALL),
    "no check": (without(f"check_{OWN}"), ALL),
    "no solution": (without(OWN), WITHOUT_2_1),
    "no solution and no check": (without(OWN, f"check_{OWN}"), WITHOUT_2_1),
    "no imports": (without("imports"), ALL),
    "no given function": (without("exchange"), ALL),
    "renamed ids": (rename_cells, ALL),
    "no marks on cells": (strip_marks, ALL),
    "solution doubled": (double_cell(OWN, WRONG), ALL),
    "check doubled": (double_cell(f"check_{OWN}", f'check("2.1", my_{OWN}, hint=1)'), ALL),
}


def solve_half(stub: NotebookNode, solved: NotebookNode) -> NotebookNode:
    """2.1, 2.2 and 2.5 are right, with warnings and experiments around; 2.3 is wrong, the others are stubs."""
    notebook = nbformat.from_dict(stub)
    right = {grade_id: cell_of(solved, grade_id).source for grade_id in (OWN, "ring_all_gather", "all_to_all")}
    right[OWN] = right[OWN].replace("    n, r =", f"{NOISE}    n, r =", 1)
    right["ring_all_reduce"] = "def my_ring_all_reduce(tensor):\n    return tensor\n"
    for grade_id, source in right.items():
        cell_of(notebook, grade_id).source = source
    return with_experiments(notebook)


def submit(course: Path, student: str, notebook: NotebookNode) -> None:
    submit_text(course, student, json.dumps(notebook))


def submit_text(course: Path, student: str, text: str) -> None:
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").write_text(text, encoding="utf-8")
