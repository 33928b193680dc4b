"""The notebooks' cells and the solutions' checks under a mode, each notebook in a fresh kernel, failures included."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.pictures.drawn import NOT_SEEN
from tools.harness.needs import launches
from tools.harness.outputs import error_of, joined, said, sanitized
from tools.run_notebooks import NOTEBOOKS, ROOT, client_of, environment

SOLUTIONS = sorted((ROOT / "solutions").glob("*/*.ipynb"))
CELL_TIMEOUT_S = 120  # a cell that hangs is interrupted, and the next one runs


def cell_with(chapter: str, text: str) -> str:
    """The label of a chapter's only code cell with this text: ("03", "def stumbling(") is "03[53]" until cells come
    before it.

    Raises:
        ValueError: no code cell of the chapter has the text, or several do.
    """
    (path,) = [path for path in NOTEBOOKS if path.name.startswith(f"{chapter}_")]
    numbers = [number for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"])
               if cell["cell_type"] == "code" and text in "".join(cell["source"])]
    if len(numbers) != 1:
        raise ValueError(f"Expected one code cell of {path.name} with {text!r}; found {numbers}.")
    return f"{chapter}[{numbers[0]}]"


# Headlines about times. Those of a pretended GPU mean nothing, and those of a busy machine little: tests/executed.py
# judges them where notebooks ran one by one.
ABOUT_TIMES = frozenset(starmap(cell_with, (
    ("01", "def measured_twice("), ("02", "def for_others_s("), ("02", "def all_sizes("), ("03", "def stumbling("),
    ("04", "def naive_gpipe("), ("05", "launch(whole_and_sliced"), ("06", "def on_the_clock("),
    ("07", "def on_the_clock("), ("08", "def on_the_clock("), ("09", "def on_one_host("),
)))


@dataclass(frozen=True)
class Outcome:
    """What became of one cell, check or trial."""

    what: str  # "00[17]": the notebook's cell 17 of all kinds, from 0; an exercise "2.1"; a trial's name
    passed: bool
    error: str = ""  # its first line
    other_output: str = ""  # the first line that differs from the output in the repository, where it passed


def lessons(mode: str, path: Path, **hooks: Callable) -> list[Outcome]:
    """Every cell of the notebook whose ranks may have a GPU. One that is to fail passes when it fails likewise.

    `hooks` are NotebookClient's.
    """
    notebook = nbformat.read(path, as_version=4)
    recorded = {number: cell.outputs for number, cell in enumerate(notebook.cells)
                if cell.cell_type == "code" and launches(cell.source)}
    execute(mode, notebook, path.parent, **hooks)
    return [lesson(f"{path.name[:2]}[{number}]", notebook.cells[number].outputs, before)
            for number, before in recorded.items()]


def lesson(what: str, outputs: list[NotebookNode], recorded: list[NotebookNode]) -> Outcome:
    expected, error = error_of(recorded), error_of(outputs)
    if (expected and expected.ename) != (error and error.ename):
        return Outcome(what, False, first_line(error) if error else f"no {expected.ename}")
    now = text_of(outputs)
    if what in ABOUT_TIMES:
        now = [line.replace(NOT_SEEN, "") for line in now]
    return Outcome(what, True, other_output=first_difference(text_of(recorded), now))


def checks(mode: str, path: Path, first: str | None = None) -> list[Outcome]:
    """Every check cell of a notebook with solutions. It passes where the report says so; the words of the mode `first`
    are the ones to print.
    """
    reports = [reports_of(each, path) for each in (first or mode, mode)[first is None:]]
    return [Outcome(number, False, first_line(error)) if (error := error_of(outputs)) else
            Outcome(number, True, other_output=first_difference(text_of(reports[0][number]), text_of(outputs)))
            for number, outputs in reports[-1].items()]


def reports_of(mode: str, path: Path) -> dict[str, list[NotebookNode]]:
    """What the check of each exercise prints."""
    notebook = nbformat.read(path, as_version=4)
    asked = {re.match(r'check\("([\d.]+)"', cell.source)[1]: cell for cell in notebook.cells
             if cell.metadata.get("nbgrader", {}).get("grade")}
    for cell in asked.values():
        cell.source = f"_report = {cell.source}\nprint(_report)\nassert _report.passed, _report.cause"
    execute(mode, notebook, path.parent)
    return {number: cell.outputs for number, cell in asked.items()}


def execute(mode: str, notebook: NotebookNode, folder: Path, **hooks: Callable) -> None:
    """Run all cells in a kernel whose launches find the mode's machine. `hooks` are NotebookClient's."""
    begin = (f"from tools.harness.pretend.hook import pretended; from tools.harness.pretend.modes import MODES; "
             f"_pretended = pretended(MODES[{mode!r}]); _pretended.__enter__()")
    client_of(notebook, folder, [begin], CELL_TIMEOUT_S, **hooks).execute(env=environment())


def first_line(error: NotebookNode) -> str:
    """The name of an error and the line that tells most: launch says the rank's own error in its second."""
    lines = [line.strip() for line in error.evalue.splitlines() if line.strip()] or [""]
    own = lines[1] if error.ename == "RankFailed" and len(lines) > 1 else lines[0]
    return f"{error.ename}: {own}"


def text_of(outputs: list[NotebookNode]) -> list[str]:
    """The lines that nbval compares, measured times and the like taken out."""
    return sanitized("".join(output.get("text") or said(output) + "\n" for output in joined(outputs)
                             if output.output_type != "error")).splitlines()


def first_difference(before: list[str], now: list[str]) -> str:
    pairs = zip([*before, *[""] * len(now)], [*now, *[""] * len(before)])
    return next((f"{new!r} for {old!r}" for old, new in pairs if old != new), "")


def everything(mode: str, only: str = "") -> Iterator[tuple[str, list[Outcome]]]:
    """(title, outcomes) of every notebook and every chapter's solutions whose name begins with `only`."""
    for path in NOTEBOOKS:
        if path.name.startswith(only):
            yield f"lessons {path.stem}", lessons(mode, path)
    for path in SOLUTIONS:
        if path.name.startswith(only):
            yield f"solutions {path.stem}", checks(mode, path, "cpu")
