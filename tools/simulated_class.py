"""A class that nobody teaches: submissions of every kind over all chapters, with the mark that each deserves.

    python -m tools.simulated_class DIR --submissions 200 --jobs 2 --kills 3 [--gradescope 10] [--json FILE]
    python -m tools.simulated_class DIR --figures      a solved notebook of each chapter alone; writes figures.json

DIR, a new folder, becomes a course with submissions: right, half, stubs, syntax errors, endless loops, floods of
output, deleted and doubled cells, hostile ones, second downloads and files that were cut off. They are graded by `make
grade`'s command, which is killed on the way and started again; then each mark is compared with the truth. --gradescope
grades as many of them once more as Gradescope's autograder would, without namespaces where root can give them up.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import nbformat
from nbformat import NotebookNode

from course_lib.grading.marks import figures
from course_lib.grading.marks.standing import CourseFolder, standings
from tools.exercises import ROOT, assignments

CONTAINER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


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


# Each makes (notebook, its mark) of a chapter and of a generator that chooses. A function that another one calls costs
# its own points alone: whoever builds on a wrong answer is judged with a right one.
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


def environment() -> dict[str, str]:
    """Of the commands: this course."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def grade(folder: Path, name: str, jobs: int, options: list[str], kill_after: int | None = None) -> bool:
    """`make grade`'s command; killed after so many submissions where asked for. Whether it came to its end."""
    command = [sys.executable, "-m", "course_lib.grading.marks.batch", name, "--jobs", str(jobs), "--quiet",
               *(["--", *options] if options else [])]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True)
    done = 0
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)
        done += line.endswith(": done\n")
        if kill_after is not None and done >= kill_after:
            process.send_signal(signal.SIGKILL)
            print("    killed", flush=True)
            break
    process.stdout.close()
    return process.wait() >= 0


def grade_on_platform(folder: Path, name: str, student: str) -> float | None:
    """The points in Gradescope's results.json of one submission, without namespaces; None where there is no result."""
    result = folder / "results" / f"{name} {student}.json"
    result.parent.mkdir(exist_ok=True)
    prefix = CONTAINER if os.geteuid() == 0 and shutil.which("setpriv") else []
    subprocess.run([*prefix, sys.executable, "-m", "course_lib.grading.marks.alone", name,
                    folder / "submitted" / student / name, "--course", folder, "--gradescope", "--to", result],
                   env=environment(), stdout=subprocess.DEVNULL)
    if not result.exists():
        return None
    found = json.loads(result.read_text(encoding="utf-8"))
    return sum(each["score"] for each in found["tests"]) if found["tests"] else None


def compare(folder: Path, truth: dict[str, dict[str, float | None]]) -> list[str]:
    """Each mark that is not the deserved one, in words."""
    wrong = []
    for name, marks in truth.items():
        found = {each.student: each for each in standings(CourseFolder.at(folder), name)}
        wrong += [f"{name}, {student}: {found[student].mark}, deserved {mark} ({found[student].status.word})"
                  for student, mark in marks.items() if found[student].mark != mark]
    return wrong


def costs(folder: Path) -> dict[str, dict[str, float]]:
    """By assignment, median and highest seconds and the highest peak of a submission, as they were kept."""
    found = {}
    for path in sorted((folder / ".grading").glob("*/")):
        kept = [json.loads(each.read_text(encoding="utf-8")) for each in path.glob("*.json")]
        if seconds := [each["seconds"] for each in kept if "seconds" in each]:
            found[path.name] = {"submissions": len(kept), "seconds": median(seconds), "longest_s": max(seconds),
                                "peak_bytes": max(each.get("peak_bytes", 0) for each in kept)}
    return found


def run_class(folder: Path, count: int, jobs: int, kills: int, on_platform: int, options: list[str], seed: int) -> dict:
    """Make, grade, kill and compare; everything that was found, for people and as JSON."""
    truth = make_class(folder, count, seed)
    names = list(truth)
    start = time.monotonic()
    for place, name in enumerate(names):
        print(f"{name}: {len(truth[name])} submissions", flush=True)
        if place < kills:
            grade(folder, name, jobs, options, kill_after=1)
        grade(folder, name, jobs, options)
    seconds = time.monotonic() - start
    wrong = compare(folder, truth)
    tried = [(name, student, mark) for name, marks in truth.items() for student, mark in marks.items()][:on_platform]
    differ = [f"{name}, {student}: {points} there, {mark} here" for name, student, mark in tried
              if (points := grade_on_platform(folder, name, student)) != mark]
    return {"submissions": count, "jobs": jobs, "kills": min(kills, len(names)), "seconds": seconds,
            "seconds_each": seconds / count, "wrong": wrong, "on_platform": len(tried), "differ": differ,
            "by_assignment": costs(folder)}


def record_figures(folder: Path, options: list[str]) -> None:
    """Grade a solved notebook of each chapter alone, and write what it took for `make grade` to say beforehand."""
    make_class(folder, 0, 0)
    for name in assignments():
        own = folder / "submitted" / "right" / name
        own.mkdir(parents=True)
        shutil.copy(ROOT / "solutions" / name / f"{name}.ipynb", own)
        grade(folder, name, 1, options)
    found = {name: {"seconds": round(each["seconds"], 1), "peak_bytes": round(each["peak_bytes"], -6)}
             for name, each in costs(folder).items()}
    figures.RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def main() -> int:
    arguments = sys.argv[1:]
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="python -m tools.simulated_class", description=__doc__.splitlines()[0],
                                     epilog="What follows -- goes to nbgrader.")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="how often grading is killed on the way")
    parser.add_argument("--gradescope", type=int, default=0, help="submissions to grade as Gradescope would, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--figures", action="store_true", help="a solved notebook of each chapter; writes figures.json")
    asked = parser.parse_args(arguments[:cut])
    if asked.figures:
        record_figures(asked.folder.resolve(), arguments[cut + 1:])
        return 0
    found = run_class(asked.folder.resolve(), asked.submissions, asked.jobs, asked.kills, asked.gradescope,
                      arguments[cut + 1:], asked.seed)
    text = json.dumps(found, indent=1)
    if asked.json:
        asked.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return int(bool(found["wrong"] or found["differ"]))


if __name__ == "__main__":
    sys.exit(main())
