"""The notebooks' cells and the solutions' checks under a mode, each notebook in a fresh kernel, failures included."""

import ast
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbval.plugin import get_sanitize_patterns

from tools import notebooks

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((ROOT / "solutions").glob("*/*.ipynb"))
CELL_TIMEOUT_S = 120  # a cell that hangs is interrupted, and the next one runs


@dataclass(frozen=True)
class Outcome:
    """What became of one cell, check or trial."""

    what: str  # "00[17]": the notebook's cell 17 of all kinds, from 0; an exercise "2.1"; a trial's name
    passed: bool
    error: str = ""  # its first line
    other_output: str = ""  # the first line that differs from the output in the repository, where it passed


def lessons(mode: str, path: Path) -> list[Outcome]:
    """Every cell of the notebook that calls launch. A cell that fails on purpose passes when it fails in the same way.
    """
    notebook = nbformat.read(path, as_version=4)
    launching = {number: list(cell.outputs) for number, cell in enumerate(notebook.cells)
                 if cell.cell_type == "code" and "launch(" in cell.source}
    execute(mode, notebook, path.parent)
    return [lesson(f"{path.name[:2]}[{number}]", notebook.cells[number], before)
            for number, before in launching.items()]


def lesson(what: str, cell: NotebookNode, recorded: list[NotebookNode]) -> Outcome:
    expected, error = error_of(recorded), error_of(cell.outputs)
    if (expected and expected.ename) != (error and error.ename):
        return Outcome(what, False, first_line(error) if error else f"no {expected.ename}")
    return Outcome(what, True, other_output=first_difference(text_of(recorded), text_of(cell.outputs)))


def checks(mode: str, path: Path) -> list[Outcome]:
    """Every check cell of a notebook with solutions: passed where the report says so."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    asked = [cell for cell in code if cell.metadata.nbgrader.grade]
    for cell in asked:
        cell.source = f"_report = {cell.source}\nassert _report.passed, _report.cause"
    execute(mode, notebook, path.parent)
    errors = [(number_of(cell.source), error_of(cell.outputs)) for cell in asked]
    return [Outcome(number, error is None, first_line(error) if error else "") for number, error in errors]


def number_of(source: str) -> str:
    """The exercise that a check cell names."""
    (call,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return call.args[0].value


def execute(mode: str, notebook: NotebookNode, folder: Path, **hooks: Callable) -> None:
    """Run all cells in a kernel whose launches find the mode's machine. `hooks` are NotebookClient's."""
    os.environ |= {"COURSE_LIB_STABLE_OUTPUT": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    beginning = (f"from tests.pretend.hook import pretended; from tests.pretend.modes import MODES; "
                 f"_pretended = pretended(MODES[{mode!r}]); _pretended.__enter__()")
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, interrupt_on_timeout=True, allow_errors=True, kernel_name="python3",
        record_timing=False, store_widget_state=False, resources={"metadata": {"path": str(folder)}},
        extra_arguments=[f"--IPKernelApp.exec_lines={beginning}"], **hooks,
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})


def error_of(outputs: list[NotebookNode]) -> NotebookNode | None:
    return next((output for output in outputs if output.output_type == "error"), None)


def first_line(error: NotebookNode) -> str:
    """The name of an error and the line that tells most: launch says the rank's own error in its second."""
    lines = [line.strip() for line in error.evalue.splitlines() if line.strip()] or [""]
    said = lines[1] if error.ename == "RankFailed" and len(lines) > 1 else lines[0]
    return f"{error.ename}: {said}"


def text_of(outputs: list[NotebookNode]) -> list[str]:
    """The lines that nbval compares, measured times and the like taken out."""
    kept = notebooks.normalised_outputs([NotebookNode(output) for output in outputs], None)
    text = "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") + "\n" for output in kept
                   if output.output_type != "error")
    for pattern, replacement in get_sanitize_patterns(notebooks.SANITIZE.read_text(encoding="utf-8")):
        text = re.sub(pattern, replacement, text)
    return text.splitlines()


def first_difference(before: list[str], now: list[str]) -> str:
    pairs = zip([*before, *[""] * len(now)], [*now, *[""] * len(before)])
    return next((f"{new!r} for {old!r}" for old, new in pairs if old != new), "")


def everything(mode: str, only: str = "") -> Iterator[tuple[str, list[Outcome]]]:
    """(title, outcomes) of every notebook and every chapter's solutions whose name begins with `only`."""
    for kind, run, paths in (("lessons", lessons, NOTEBOOKS), ("solutions", checks, SOLUTIONS)):
        for path in paths:
            if path.name.startswith(only):
                yield f"{kind} {path.stem}", run(mode, path)
