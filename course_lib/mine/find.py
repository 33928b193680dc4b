"""`find("workspace/exercises")`: the reader's answers that can train, each checked once, and a table of them.

A cell that defines the function of an exercise is compiled under the name "5.5 in 05_tensor_parallel.ipynb". So every
frame on the stack, and every line of a traceback, says whose code it is.
"""

import ast
import builtins
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat

from course_lib.grading import recorded
from course_lib.grading.chapters import folders
from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import check_exercise
from course_lib.grading.staying import StayingAttempts
from course_lib.grading.trusted.inside.student_code import defines, parse, uses_ipython
from course_lib.pictures.drawn import Drawn

ANSWER = re.compile(r"(\d+\.\d+) in (\S+\.ipynb)")
NUMBERS = [number for chapter in folders() for number in recorded.of_chapter(chapter)["work"]]  # exercises with a hole
YOURS, COURSE = "yours", "the course's"


@dataclass(frozen=True)
class Notebook:
    """The code cells of one chapter's exercises, without those that check: (label, number or "", source) of each.

    The label is the file name in tracebacks, the number that of the exercise that the cell answers.
    """

    name: str
    chapter: int
    cells: tuple[tuple[str, str, str], ...]


def read_notebook(path: Path) -> Notebook:
    """ValueError for a file that is no notebook of exercises, such as 05_tensor_parallel.ipynb."""
    try:
        chapter, found = int(path.stem[:2]), nbformat.read(path, as_version=4).cells
    except Exception as error:
        raise ValueError(f"{path} cannot be read ({error}): expected a notebook of exercises, such as "
                         "05_tensor_parallel/05_tensor_parallel.ipynb") from error
    number_of = {function: number for number, (function, _) in recorded.of_chapter(chapter)["exercises"].items()}
    cells = []
    for place, cell in enumerate(found, 1):
        if cell.cell_type == "code" and not cell.metadata.get("nbgrader", {}).get("grade"):
            number = next((number_of[name] for name in functions_in(cell.source) if name in number_of), "")
            cells.append((f"{number or f'cell {place}'} in {path.name}", number, cell.source))
    return Notebook(path.name, chapter, tuple(cells))


def functions_in(source: str) -> dict[str, ast.FunctionDef]:
    """The functions that a cell defines at its top level, by name; none where it is no Python."""
    try:
        return {node.name: node for node in parse(source).body if isinstance(node, ast.FunctionDef)}
    except (SyntaxError, ValueError):
        return {}


def run_cells(notebook: Notebook, modules: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """(names that the cells define, what a cell raised by its label). What follows a cell that raises still runs.

    Of an answer's cell all statements run, of others those that give names to things, as the class grader has it.
    modules: given to the cells' imports instead of the modules of these names, torch and torch.distributed say.
    """
    def give(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = __import__(name, globals, locals, fromlist, level)
        return modules.get(name if fromlist else name.partition(".")[0], found)

    names: dict[str, Any] = {"__name__": "your_answers", "__builtins__": {**vars(builtins), "__import__": give}}
    errors: dict[str, Exception] = {}
    for label, number, source in notebook.cells:
        linecache.cache[label] = (len(source), None, source.splitlines(True), label)
        try:
            for node in parse(source).body:
                if (number or defines(node)) and not uses_ipython(node):
                    exec(compile(ast.Module([node], []), label, "exec", dont_inherit=True), names)
        except Exception as error:
            errors[label] = error
    return names, errors


@dataclass(frozen=True)
class Part:
    """One hole: the reader's code is in it, or the course's, and `why`."""

    number: str
    why: str = ""

    @property
    def whose(self) -> str:
        """YOURS or COURSE."""
        return COURSE if self.why else YOURS

    @property
    def function(self) -> str:
        """The name that the exercise asks for."""
        return recorded.of_exercise(self.number, "exercises")[0]

    @property
    def work(self) -> str:
        """What the function does in a training run, in words."""
        return recorded.work(self.number)


@dataclass(frozen=True, repr=False)
class Answers(Drawn):
    """What is in a folder of exercises: `parts` in the order of the chapters, and the notebooks that they are from."""

    notebooks: tuple[Notebook, ...]
    parts: tuple[Part, ...]

    @property
    def numbers(self) -> frozenset[str]:
        """The exercises whose answers train."""
        return frozenset(part.number for part in self.parts if not part.why)

    def finding(self) -> str:
        return "\n".join([f"{len(self.numbers)} of {len(self.parts)} parts are yours", *(
            f"  {part.number} {part.function}: {part.why}" for part in self.parts if part.why)])

    def html(self) -> str:
        rows = ((part.number, part.function, part.work, part.whose, part.why) for part in self.parts)
        return table(self.finding().splitlines()[:1], ("", "function", "its work in training", "whose", "why"), rows)


def table(lines: Iterable[str], head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Words as HTML: lines, the first one in bold, and a table under them."""
    cells = ("".join(f'<td style="text-align: left">{escape(word)}</td>' for word in row) for row in (head, *rows))
    first, *others = map(escape, lines)
    return ("<p>" + "<br>".join([f"<b>{first}</b>", *others]) + "</p><table>"
            + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>")


def notebooks_in(folder: Path | str) -> tuple[Notebook, ...]:
    """The notebooks in `folder` of those chapters whose answers can train."""
    paths = [path for path in sorted(Path(folder).glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))
             if path.stem == path.parent.name]  # not a newer copy beside it
    return tuple(each for each in map(read_notebook, paths) if recorded.of_chapter(each.chapter)["work"])


def written_in(notebook: Notebook) -> tuple[dict[str, Callable], dict[str, str]]:
    """The functions of this chapter that have a hole, by exercise; for each other one, why there is none."""
    functions, whys, (names, errors) = {}, {}, run_cells(notebook, {})
    cells = {number: (label, source) for label, number, source in notebook.cells}
    for number in recorded.of_chapter(notebook.chapter)["work"]:
        name, (label, source) = recorded.of_exercise(number, "exercises")[0], cells.get(number, ("", ""))
        if not label:
            whys[number] = f"there is no function {name} in {notebook.name}"
        elif label in errors or name not in names:
            whys[number] = f"its cell raises {type(errors.get(label)).__name__}: {errors.get(label)}"
        elif any(isinstance(statement, ast.Raise) and "NotImplementedError" in ast.unparse(statement)
                 for statement in functions_in(source)[name].body):  # as it was given
            whys[number] = Verdict.NOT_WRITTEN.value[0]
        else:
            functions[number] = names[name]
    return functions, whys


def count_answers(folder: Path | str) -> int:
    """How many answers with a hole in training are in `folder`, right or wrong; 0 where there is no such folder."""
    return sum(len(written_in(notebook)[0]) for notebook in notebooks_in(folder))


def find(folder: Path | str, without: Collection[str] = (), say: Callable[[str], None] = lambda text: None) -> Answers:
    """The answers in `folder`, which has 02_collectives/02_collectives.ipynb and so on, as exercises/ has.

    without: exercises whose answers are left out. say(text): tells what is being checked. Starts ranks, on the CPU.
    ValueError for a folder without notebooks, and for an exercise in `without` that has no hole.
    """
    if unknown := sorted(set(without) - set(NUMBERS)):
        raise ValueError(f"without {', '.join(unknown)}: expected some of {', '.join(NUMBERS)}")
    notebooks = notebooks_in(folder)
    if not notebooks:
        raise ValueError(f"no exercises in {str(folder)!r}: expected 02_collectives/02_collectives.ipynb and so on, as "
                         "`make lab` makes them in workspace/exercises")
    whys = dict.fromkeys(NUMBERS, "there is no notebook of its chapter")
    with StayingAttempts() as attempts:
        for notebook in notebooks:
            functions, others = written_in(notebook)
            whys |= others
            for number in sorted(functions.keys() - set(without), key=NUMBERS.index):
                say(number)
                report = check_exercise(exercise(number), functions[number], attempts=attempts)
                why = f"{report.verdict.value[0]}: {report.cause}".rstrip(": ").partition("\n")[0]
                whys[number] = "" if report.verdict in (Verdict.CORRECT, Verdict.COSTLY) else why
    whys |= dict.fromkeys(without, "left out, as you asked")
    return Answers(notebooks, tuple(Part(number, why) for number, why in whys.items()))
