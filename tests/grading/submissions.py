"""What a class hands in for chapter 2: 17 submissions, each with the marks that it deserves.

A right notebook has all points. 2.1 alone wrong costs its own 4: 2.3, which calls it, is judged with a right one.
"""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output

from course_lib.grading.registry import exercises_of

ROOT = Path(__file__).resolve().parents[2]
NAME = "02_collectives"
POINTS = {exercise.number: exercise.points for exercise in exercises_of(2)}
ALL = sum(POINTS.values())
WITHOUT_2_1 = ALL - POINTS["2.1"]
OWN = "ring_reduce_scatter"  # the id of 2.1's solution cell
Change = Callable[[NotebookNode], object]  # of a notebook in which all is right
WRONG = "def my_ring_reduce_scatter(tensor):\n    return tensor\n"


def notebook_of(part: str) -> NotebookNode:
    """What students get, of "exercises", or what teachers have, of "solutions"."""
    return nbformat.read(ROOT / part / NAME / f"{NAME}.ipynb", as_version=4)


def cell_of(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


def with_own(source: str) -> Change:
    """All right but 2.1, whose cell holds `source`."""
    return lambda notebook: cell_of(notebook, OWN).update(source=source)


def before_own(lines: str) -> Change:
    """All right, with `lines` at the beginning of 2.1's function."""
    return lambda notebook: with_own(cell_of(notebook, OWN).source.replace("    n, r =", f"{lines}    n, r =", 1))(
        notebook)


def without(*grade_ids: str) -> Change:
    return lambda notebook: [notebook.cells.remove(cell_of(notebook, grade_id)) for grade_id in grade_ids]


def double_cell(grade_id: str, first: str) -> Change:
    """The cell twice, as JupyterLab's button does it, and the upper one then edited."""
    def change(notebook: NotebookNode) -> None:
        cell = cell_of(notebook, grade_id)
        upper = nbformat.from_dict({**cell, "id": "another-id", "source": first})
        notebook.cells.insert(notebook.cells.index(cell), upper)
    return change


def rename_cells(notebook: NotebookNode) -> None:
    for grade_id in (OWN, f"check_{OWN}"):
        cell_of(notebook, grade_id).metadata.nbgrader["grade_id"] = f"my_{grade_id}"


def strip_marks(notebook: NotebookNode) -> None:
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)


def forge_hundred_points(notebook: NotebookNode) -> None:
    with_own(WRONG)(notebook)
    check = cell_of(notebook, f"check_{OWN}")
    check.metadata.nbgrader["points"], check.source = 100, "1000"


def from_before_ids(notebook: NotebookNode) -> None:
    notebook.nbformat_minor = 2
    for cell in notebook.cells:
        cell.pop("id", None)


def with_long_output(notebook: NotebookNode) -> None:
    cell_of(notebook, OWN).outputs = [new_output("stream", text="x" * 30_000_000)]


def with_experiments(notebook: NotebookNode) -> None:
    notebook.cells[2:2] = [new_code_cell("launch = 3\nwhile True: pass"), new_code_cell("%matplotlib inline\n1 / 0")]


def unchanged(notebook: NotebookNode) -> None: ...


OUTSIDE = ("    import os\n    os.system('touch /tmp/was_here')\n"
           "    os.path.exists('/etc/passwd') and open('/etc/passwd').read()\n"
           "    os.path.exists('gradebook.db') and os.remove('gradebook.db')\n")
NOISE = "    import sys, warnings\n    warnings.warn('old')\n    print('!', file=sys.stderr)\n"

SUBMISSIONS: dict[str, tuple[Change, float]] = {
    "right": (unchanged, ALL),
    "Zoë O'Neill": (unchanged, ALL),
    "from nbformat 4.2": (from_before_ids, ALL),
    "long output": (with_long_output, ALL),
    "wrong": (with_own(WRONG), WITHOUT_2_1),
    "does not parse": (with_own("def my_ring_reduce_scatter(tensor:\n"), WITHOUT_2_1),
    "worth a hundred": (forge_hundred_points, WITHOUT_2_1),
    "reads and writes outside": (before_own(OUTSIDE), ALL),
    "no check": (without(f"check_{OWN}"), ALL),
    "no solution": (without(OWN), WITHOUT_2_1),
    "no solution and no check": (without(OWN, f"check_{OWN}"), WITHOUT_2_1),
    "no imports": (without("imports"), ALL),
    "no given function": (without("exchange"), ALL),
    "renamed ids": (rename_cells, ALL),
    "no marks on cells": (strip_marks, ALL),
    "solution doubled": (double_cell(OWN, WRONG), ALL),
    "check doubled": (double_cell(f"check_{OWN}", f'report = check("2.1", my_{OWN})'), ALL),
}


def solve_half(stub: NotebookNode, solved: NotebookNode) -> NotebookNode:
    """2.1, 2.2 and 2.5 are right, with warnings and experiments around; 2.3 is wrong, the others are stubs."""
    notebook = nbformat.from_dict(stub)
    right = {grade_id: cell_of(solved, grade_id).source for grade_id in (OWN, "ring_all_gather", "all_to_all")}
    right[OWN] = right[OWN].replace("    n, r =", f"{NOISE}    n, r =", 1)
    right["ring_all_reduce"] = "def my_ring_all_reduce(tensor):\n    return tensor\n"
    for grade_id, source in right.items():
        cell_of(notebook, grade_id).source = source
    with_experiments(notebook)
    return notebook


def of_student(student: str) -> NotebookNode:
    notebook = notebook_of("solutions")
    SUBMISSIONS[student][0](notebook)
    return notebook


def submit(course: Path, student: str, notebook: NotebookNode | str, name: str = NAME, file: str = "") -> Path:
    path = course / "submitted" / student / name / (file or f"{name}.ipynb")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook), encoding="utf-8")
    return path
