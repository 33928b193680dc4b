"""Submissions of every kind over all chapters, each with the mark that it deserves.

A function that another one calls costs its own points alone: whoever builds on a wrong answer is judged with a right
one.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.exercises import ROOT, assignments


@dataclass(frozen=True)
class Cell:
    """An exercise's place in a notebook: the ids of its solution and its check."""

    function: str
    points: float
    solution: str
    check: str


@dataclass
class Chapter:
    """An assignment and what submissions are made of."""

    name: str

    def __post_init__(self) -> None:
        self.cells = cells_of(self.read("solutions"))
        self.all = sum(each.points for each in self.cells)

    def read(self, part: str) -> NotebookNode:
        """The notebook of "solutions" or "exercises"."""
        return nbformat.read(ROOT / part / self.name / f"{self.name}.ipynb", as_version=4)


def cells_of(notebook: NotebookNode) -> list[Cell]:
    """The exercises of a notebook, in order: each check belongs to the solution above it."""
    found, solution = [], ""
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution") and cell.cell_type == "code":
            solution = marks["grade_id"]
        elif marks.get("grade") and cell.cell_type == "code":
            function = cell.source.partition(", ")[2].partition(")")[0]
            found.append(Cell(function, float(marks["points"]), solution, marks["grade_id"]))
    return found


def find(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    """The cell with this id."""
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


# Each kind is a function of a chapter and of a generator that chooses: a notebook and its mark.
Made = tuple[NotebookNode, float]


def right(chapter: Chapter, draw: random.Random) -> Made:
    """As solved."""
    return chapter.read("solutions"), chapter.all


def stubs(chapter: Chapter, draw: random.Random) -> Made:
    """As handed out."""
    return chapter.read("exercises"), 0.0


def half(chapter: Chapter, draw: random.Random) -> Made:
    """Half of the exercises, whichever."""
    notebook, solved = chapter.read("exercises"), chapter.read("solutions")
    done = draw.sample(chapter.cells, len(chapter.cells) // 2)
    for cell in done:
        find(notebook, cell.solution).source = find(solved, cell.solution).source
    return notebook, sum(cell.points for cell in done)


def with_source(source: Callable[[Cell], str]) -> Callable[[Chapter, random.Random], Made]:
    """All right but one exercise, whose cell holds `source`."""
    def make(chapter: Chapter, draw: random.Random) -> Made:
        notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
        find(notebook, cell.solution).source = source(cell)
        return notebook, chapter.all - cell.points
    return make


def function_that(body: str) -> Callable[[Chapter, random.Random], Made]:
    """All right but one exercise, whose function does `body`."""
    return with_source(lambda cell: f"def {cell.function}(*arguments, **more):\n    {body}\n")


def flood(chapter: Chapter, draw: random.Random) -> Made:
    """All right; one cell prints as much as it can in front of its function."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    source = find(notebook, cell.solution)
    source.source = f"for _ in range(300):\n    print('x' * 100_000)\n{source.source}"
    return notebook, chapter.all


def without_check(chapter: Chapter, draw: random.Random) -> Made:
    """A check cell deleted: it is put back."""
    notebook = chapter.read("solutions")
    notebook.cells.remove(find(notebook, draw.choice(chapter.cells).check))
    return notebook, chapter.all


def without_solution(chapter: Chapter, draw: random.Random) -> Made:
    """A solution deleted."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    notebook.cells.remove(find(notebook, cell.solution))
    return notebook, chapter.all - cell.points


def doubled(chapter: Chapter, draw: random.Random) -> Made:
    """A wrong solution above the right one, with the same id."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    own = find(notebook, cell.solution)
    wrong = f"def {cell.function}(*arguments):\n    return None\n"
    other = nbformat.from_dict({**own, "id": "doubled", "source": wrong})
    notebook.cells.insert(notebook.cells.index(own), other)
    return notebook, chapter.all


LOOKS_FOR_THE_ANSWER = ("from course_lib.grading.registry import every_exercise\n    "
                        "own = next(each for each in every_exercise() if each.function == '{0}')\n    "
                        "return own.solve(*arguments)")
WRITES_OUTSIDE = ("import os\n    open('/tmp/simulated_class_was_here', 'w').write('x')\n"
                  "    os.system('rm -f gradebook.db')\n    return None")
def look_for_the_answer(cell: Cell) -> str:
    """A function that asks the grader for the right answer."""
    return f"def {cell.function}(*arguments):\n    {LOOKS_FOR_THE_ANSWER.format(cell.function)}\n"


KINDS: dict[str, Callable[[Chapter, random.Random], Made]] = {
    "right": right, "half": half, "stubs": stubs, "syntax error": with_source(lambda cell: f"def {cell.function}(x:\n"),
    "endless loop": function_that("while True: pass"), "flood": flood, "check deleted": without_check,
    "solution deleted": without_solution, "doubled": doubled, "exits": function_that("import os; os._exit(0)"),
    "looks for the answer": with_source(look_for_the_answer), "writes outside": function_that(WRITES_OUTSIDE),
    "second download": right, "cut off": right}


def make_class(folder: Path, count: int, seed: int) -> dict[str, dict[str, float | None]]:
    """A course in `folder` with `count` submissions; by assignment and student the mark, None where there is none."""
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part, folder / part)
    draw = random.Random(seed)
    chapters = [Chapter(name) for name in assignments()]
    truth: dict[str, dict[str, float | None]] = {chapter.name: {} for chapter in chapters}
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        chapter = chapters[number * len(chapters) // count]  # those of a chapter follow one another: all kinds
        student = f"{number:03} {kind}"
        notebook, mark = KINDS[kind](chapter, draw)
        text = nbformat.writes(notebook)
        own = folder / "submitted" / student / chapter.name
        own.mkdir(parents=True)
        file = f"{chapter.name} (1).ipynb" if kind == "second download" else f"{chapter.name}.ipynb"
        (own / file).write_text(text[:len(text) // 2] if kind == "cut off" else text, encoding="utf-8")
        truth[chapter.name][student] = None if kind == "cut off" else mark
    return {name: marks for name, marks in truth.items() if marks}
