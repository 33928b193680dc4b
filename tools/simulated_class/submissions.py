"""Submissions of every kind over all chapters, each with the points that it deserves, exercise by exercise.

What it deserves follows from how it was made, never from a grader: a solution as it stands earns all its points, and
what stands in its place here earns none. A function that another one calls costs its own points alone: whoever builds
on a wrong answer is judged with a right one.
"""

import random
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.grading.marks.record import ExerciseMark, Record, put_record
from tools.exercises import ROOT, assignments


@dataclass(frozen=True)
class Cell:
    """An exercise's place in a notebook: the ids of its solution and its check."""

    number: str
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

    def read(self, part: str) -> NotebookNode:
        """The notebook of "solutions" or "exercises"."""
        return nbformat.read(ROOT / part / self.name / f"{self.name}.ipynb", as_version=4)

    def points_without(self, missed: Collection[Cell]) -> dict[str, float]:
        """By exercise, all points, but none for those of `missed`."""
        return {each.number: 0.0 if each in missed else each.points for each in self.cells}


def cells_of(notebook: NotebookNode) -> list[Cell]:
    """The exercises of a notebook, in order: each check belongs to the solution above it."""
    found, solution = [], ""
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution") and cell.cell_type == "code":
            solution = marks["grade_id"]
        elif marks.get("grade") and cell.cell_type == "code":
            number, function = re.search(r'check\("([\d.]+)", (\w+)\)', cell.source).groups()
            found.append(Cell(number, function, float(marks["points"]), solution, marks["grade_id"]))
    return found


def find(notebook: NotebookNode, grade_id: str) -> NotebookNode:
    """The cell with this id."""
    return next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)


# Each kind is a function of a chapter and of a generator that chooses: a notebook, and the exercises that earn nothing.
Made = tuple[NotebookNode, Collection[Cell]]


def right(chapter: Chapter, draw: random.Random) -> Made:
    """As solved."""
    return chapter.read("solutions"), ()


def stubs(chapter: Chapter, draw: random.Random) -> Made:
    """As handed out."""
    return chapter.read("exercises"), chapter.cells


def half(chapter: Chapter, draw: random.Random) -> Made:
    """Half of the exercises, whichever."""
    notebook, solved = chapter.read("exercises"), chapter.read("solutions")
    done = draw.sample(chapter.cells, len(chapter.cells) // 2)
    for cell in done:
        find(notebook, cell.solution).source = find(solved, cell.solution).source
    return notebook, [cell for cell in chapter.cells if cell not in done]


def with_source(source: Callable[[Cell], str]) -> Callable[[Chapter, random.Random], Made]:
    """All right but one exercise, whose cell holds `source`."""
    def make(chapter: Chapter, draw: random.Random) -> Made:
        notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
        find(notebook, cell.solution).source = source(cell)
        return notebook, [cell]
    return make


def function_that(body: str) -> Callable[[Chapter, random.Random], Made]:
    """All right but one exercise, whose function does `body`."""
    return with_source(lambda cell: f"def {cell.function}(*arguments, **more):\n    {body}\n")


def flood(chapter: Chapter, draw: random.Random) -> Made:
    """All right; one cell prints as much as it can in front of its function."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    source = find(notebook, cell.solution)
    source.source = f"for _ in range(300):\n    print('x' * 100_000)\n{source.source}"
    return notebook, ()


def without_check(chapter: Chapter, draw: random.Random) -> Made:
    """A check cell deleted: it is put back."""
    notebook = chapter.read("solutions")
    notebook.cells.remove(find(notebook, draw.choice(chapter.cells).check))
    return notebook, ()


def without_solution(chapter: Chapter, draw: random.Random) -> Made:
    """A solution deleted."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    notebook.cells.remove(find(notebook, cell.solution))
    return notebook, [cell]


def doubled(chapter: Chapter, draw: random.Random) -> Made:
    """A wrong solution above the right one, with the same id."""
    notebook, cell = chapter.read("solutions"), draw.choice(chapter.cells)
    own = find(notebook, cell.solution)
    wrong = f"def {cell.function}(*arguments):\n    return None\n"
    other = nbformat.from_dict({**own, "id": "doubled", "source": wrong})
    notebook.cells.insert(notebook.cells.index(own), other)
    return notebook, ()


def forged(chapter: Chapter, draw: random.Random) -> Made:
    """Nothing written, but full marks in the notebook's metadata, and in place of the checks a number of points."""
    notebook = chapter.read("exercises")
    marks = tuple(ExerciseMark(cell.number, cell.function, "correct", cell.points, cell.points, "")
                  for cell in chapter.cells)
    put_record(notebook, Record(marks, seed=0, over_budget=0.5))
    for cell in chapter.cells:
        find(notebook, cell.check).source = "1000"
    return notebook, chapter.cells


TRACE = Path("/tmp/simulated_class_was_here")
LOOKS_FOR_THE_ANSWER = ("from course_lib.grading.registry import every_exercise\n    "
                        "own = next(each for each in every_exercise() if each.function == '{0}')\n    "
                        "return own.solve(*arguments)")
WRITES_OUTSIDE = (f"import os\n    open('{TRACE}', 'w').write('x')\n"
                  "    os.system('rm -f gradebook.db')\n    return None")


def look_for_the_answer(cell: Cell) -> str:
    """A function that asks the grader for the right answer."""
    return f"def {cell.function}(*arguments):\n    {LOOKS_FOR_THE_ANSWER.format(cell.function)}\n"


KINDS: dict[str, Callable[[Chapter, random.Random], Made]] = {
    "right": right, "half": half, "stubs": stubs, "syntax error": with_source(lambda cell: f"def {cell.function}(x:\n"),
    "endless loop": function_that("while True: pass"), "flood": flood, "check deleted": without_check,
    "solution deleted": without_solution, "doubled": doubled, "exits": function_that("import os; os._exit(0)"),
    "takes memory": function_that("return [bytearray(1 << 28) for _ in range(64)]"), "forged": forged,
    "looks for the answer": with_source(look_for_the_answer), "writes outside": function_that(WRITES_OUTSIDE),
    "second download": right, "cut off": right}


# By student, points by exercise; None where nothing can be judged.
Deserved = dict[str, dict[str, float] | None]


def make_class(folder: Path, count: int, seed: int) -> dict[str, Deserved]:
    """A course in `folder` with `count` submissions; by assignment and student what each exercise deserves."""
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part, folder / part)
    draw = random.Random(seed)
    chapters = [Chapter(name) for name in assignments()]
    truth: dict[str, Deserved] = {chapter.name: {} for chapter in chapters}
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        chapter = chapters[number * len(chapters) // count]  # those of a chapter follow one another: all kinds
        student = f"{number:03} {kind}"
        notebook, missed = KINDS[kind](chapter, draw)
        text = nbformat.writes(notebook)
        own = folder / "submitted" / student / chapter.name
        own.mkdir(parents=True)
        file = f"{chapter.name} (1).ipynb" if kind == "second download" else f"{chapter.name}.ipynb"
        (own / file).write_text(text[:len(text) // 2] if kind == "cut off" else text, encoding="utf-8")
        truth[chapter.name][student] = None if kind == "cut off" else chapter.points_without(missed)
    return {name: deserved for name, deserved in truth.items() if deserved}
