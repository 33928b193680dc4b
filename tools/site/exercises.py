"""What a page adds to an exercise: where ranks come from, the hints, and answers in words, folded."""

import re
from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_lib.grading import recorded
from course_lib.grading.registry import exercise
from tools.pages import rendered

ROOT = Path(__file__).resolve().parents[2]
RUBRICS = ROOT / "docs" / "teaching" / "rubrics.md"
HINTS = ("a nudge", "the idea", "nearly the code")


@cache
def sample_answers() -> dict[str, str]:
    """Number of a design question -> three answers in words, with the points that they get."""
    sections = re.split(r"^## (\d+\.\d+) .*$", RUBRICS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {number: text.strip() for number, text in zip(sections[1::2], sections[2::2])}


def extend(notebook: NotebookNode) -> None:
    """Add to each exercise of the notebook, below its check, what a page has."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        checked = re.match(r'check\("([\d.]+)"', cell.source) if cell.cell_type == "code" else None
        if checked:
            cells.append(nbformat.v4.new_markdown_cell(below(checked[1])))
    notebook.cells = cells


def below(number: str) -> str:
    """What stands below the check of an exercise, in MyST."""
    return rendered("exercise.md", ranks=max(trial.world_size for trial in exercise(number).trials(0)),
                    hints=list(zip(HINTS, map(as_markdown, recorded.hints(number)))),
                    answers=sample_answers().get(number))


def as_markdown(text: str) -> str:
    """A hint as it was written: only code has lines, and in prose no sign means anything."""
    if "\n" in text:
        return f"```text\n{text}\n```"
    return re.sub(r"([\\`*_\[\]<>|#$])", r"\\\1", text)


def index_page(folder: Path) -> str:
    """The list of all exercises."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*/*.ipynb"))}
    return rendered("exercises.md", chapters={
        path: [title for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "markdown"
               for title in re.findall(r"^## (\d+\.\d+ .*)$", cell.source, re.MULTILINE)]
        for path, text in texts.items()})
