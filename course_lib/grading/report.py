"""What a reader is told: what `check` answers to one function, and by `progress()` the points of all of them.

A report has a verdict in words, the likely cause, the budget beside what was measured. `check` keeps the best verdict
of each exercise in a small file of its own beside the reader's copies, so that two notebooks do not write to the same
file.
"""

import json
import os
from dataclasses import dataclass
from enum import Enum
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile

from course_lib.grading import recorded
from course_lib.grading.chapters import folders
from course_lib.grading.registry import EXAMPLES
from course_lib.pictures.drawn import Drawn, stable_output

OVER_BUDGET = 0.5  # of the points: a right answer that spends too much has the idea, and half of what was asked
FOLDER = ".progress"  # beside the reader's copies
ASKED = "COURSE_LIB_PROGRESS"  # a folder: keep it there, also in a test

# The marker of a <summary> goes with `display: list-item`; the theme's own colours make it a button in light and dark.
BUTTON = ("display: inline-block; cursor: pointer; padding: 0.1em 0.8em; border-radius: 3px; "
          "border: 1px solid var(--jp-border-color0, #888); background-color: var(--jp-layout-color2, #eee); "
          "color: var(--jp-content-font-color1, inherit)")


class Verdict(Enum):
    """Words, a sign and a colour: the theme's own where there is one."""

    CORRECT = ("correct", "✓", "var(--jp-success-color1, #2e7d32)")
    COSTLY = ("right, but over budget", "◐", "var(--jp-warn-color0, #b26a00)")
    NOT_WRITTEN = ("not written yet", "○", "var(--jp-info-color1, #0277bd)")
    TRIED = ("no verdict: this copy has no right answers, and your teacher's grader gives the points", "▷",
             "var(--jp-info-color1, #0277bd)")  # by a copy without judges
    NOT_JUDGED = ("not judged, try again", "▷", "var(--jp-info-color1, #0277bd)")  # only a limit of time decided
    WRONG = ("not right yet", "✗", "var(--jp-error-color1, #c62828)")


@dataclass(frozen=True, repr=False)
class Report:
    """The answer to one check. It draws itself in a notebook, and its text is the same on every machine."""

    number: str
    function: str
    verdict: Verdict
    out_of: int  # points
    budget: str
    measured: str = ""
    cause: str = ""
    warned: str = ""  # what Python or torch warned of
    over_budget: float = OVER_BUDGET  # share of the points for what is right and over budget
    hints: tuple[str, ...] = ()  # behind buttons, the next one inside the one before; the last is nearly the code

    @property
    def passed(self) -> bool:
        """Whether the answer is right and within its budgets."""
        return self.verdict is Verdict.CORRECT

    @property
    def points(self) -> float:
        """All points for that; a share of them for a right answer that costs too much; else 0."""
        return self.out_of * {Verdict.CORRECT: 1.0, Verdict.COSTLY: self.over_budget}.get(self.verdict, 0.0)

    def _headline(self) -> str:
        words = self.verdict.value[0]
        if self.verdict in (Verdict.TRIED, Verdict.NOT_JUDGED):
            return f"{self.number} {self.function}: {words}"
        return f"{self.number} {self.function}: {words}, {self.points:g} of {self.out_of} points"

    def _details(self) -> dict[str, str]:
        outcome = "outcome" if self.verdict is Verdict.TRIED else "measured"
        details = {"why": self.cause, "budget": self.budget, outcome: self.measured,
                   "warning": self.warned}
        return {name: text for name, text in details.items() if text}

    def __repr__(self) -> str:
        lines = [f"{self.verdict.value[1]} {self._headline()}"]
        lines += [f"  {name}: {text}".replace("\n", "\n    ") for name, text in self._details().items()]
        lines += [f"  hints: {len(self.hints)}, behind buttons where this report is shown"] * bool(self.hints)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        _, sign, colour = self.verdict.value
        rows = "".join(
            f'<div style="display: flex; gap: 0.6em; margin-top: 0.3em"><span style="min-width: 5em; '
            f'color: var(--jp-content-font-color2, inherit)">{name}</span>'
            f'<span style="white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace)">{escape(text)}'
            f'</span></div>' for name, text in self._details().items())
        return (f'<div style="border-left: 4px solid {colour}; padding: 0.3em 0.8em; '
                f'color: var(--jp-content-font-color1, inherit)"><b><span style="color: {colour}">{sign}</span> '
                f'{escape(self._headline())}</b>{rows}{hint_buttons(self.hints)}</div>')


def hint_buttons(hints: tuple[str, ...]) -> str:
    """Each hint in a <details>, which opens without a kernel; the next one's button is inside, so it comes after."""
    html = ""
    for number, text in reversed(list(enumerate(hints, 1))):
        last = number == len(hints)
        font = "pre; overflow-x: auto; font-family: var(--jp-code-font-family, monospace)" if last else "pre-wrap"
        html = (f'<details style="margin-top: 0.4em"><summary style="{BUTTON}">hint {number}</summary>'
                f'<div style="margin: 0.4em 0; white-space: {font}">{escape(text)}</div>{html}</details>')
    return html


@dataclass(frozen=True)
class Line:
    """One exercise in the table."""

    number: str
    function: str
    out_of: int
    best: float | None  # share of the points, which may change with the course; None: never checked
    link: str  # relative to the notebook; empty where there is no such file

    @property
    def points(self) -> float:
        """Points of the best answer so far; 0 where none was checked."""
        return self.out_of * (self.best or 0.0)

    @property
    def is_open(self) -> bool:
        """Whether there are points left to win."""
        return self.points < self.out_of

    def words(self) -> str:
        """The points in words."""
        return "not checked yet" if self.best is None else f"{self.points:g} of {self.out_of} points"


@dataclass(frozen=True, repr=False)
class Progress(Drawn):
    """The points of all exercises and chapters; it draws itself as a table."""

    lines: tuple[Line, ...]
    trouble: str = ""  # why there are no points

    def chapters(self) -> dict[int, list[Line]]:
        """The lines of each chapter."""
        found: dict[int, list[Line]] = {}
        for line in self.lines:
            found.setdefault(int(line.number.partition(".")[0]), []).append(line)
        return found

    def finding(self) -> str:
        begun = [f"chapter {chapter}: {total(lines)}{open_ones(lines)}" for chapter, lines in self.chapters().items()
                 if any(line.best is not None for line in lines)]
        return "; ".join([*begun, f"in all {total(self.lines)}", *([self.trouble] if self.trouble else [])])

    def html(self) -> str:
        chapters = "".join(
            f"<details{' open' * is_under_way(lines)}><summary>chapter {chapter}: {total(lines)}</summary>"
            f"<table>{''.join(row(line) for line in lines)}</table></details>"
            for chapter, lines in self.chapters().items())
        trouble = f"<p>{escape(self.trouble)}</p>" * bool(self.trouble)
        return f"<p><b>In all {total(self.lines)}</b></p>{trouble}{chapters}"


def is_under_way(lines: list[Line]) -> bool:
    """Whether some of a chapter is done or tried, and some is open."""
    return any(line.best is not None for line in lines) and any(line.is_open for line in lines)


def total(lines: list[Line] | tuple[Line, ...]) -> str:
    """Points of these exercises, of how many."""
    return f"{sum(line.points for line in lines):g} of {sum(line.out_of for line in lines)} points"


def open_ones(lines: list[Line]) -> str:
    """The numbers of exercises that are still open; "" where there are none."""
    numbers = ", ".join(line.number for line in lines if line.is_open)
    return f", open: {numbers}" * bool(numbers)


def row(line: Line) -> str:
    """One exercise as a row of the HTML table, linked where its notebook is known."""
    name = f"{line.number} {escape(line.function)}"
    linked = f'<a href="{escape(line.link)}">{name}</a>' if line.link else name
    sign = "○" if line.is_open else "✓"
    return (f'<tr><td style="text-align: left">{sign} {linked}</td>'
            f'<td style="text-align: left">{escape(line.words())}</td></tr>')


def progress() -> Progress:
    """What the reader has reached so far, by exercise and by chapter."""
    folder = progress_folder()
    lines = [Line(number, function, out_of, read_best(folder / f"{number}.json"), link_to(chapter))
             for chapter in folders()
             for number, (function, out_of) in recorded.of_chapter(chapter)["exercises"].items()]
    no_points = any((each / EXAMPLES).exists() for each in folders().values())
    return Progress(tuple(lines), "this copy gives no points: your teacher's grader does" * no_points)


def keep(report: Report) -> None:
    """Remember the verdict, if a reader is at work; a folder that cannot be written is no error of `check`."""
    if ASKED not in os.environ and ("NBGRADER_EXECUTION" in os.environ or stable_output()):
        return
    path = progress_folder() / f"{report.number}.json"
    try:
        best = max(report.points / report.out_of, read_best(path) or 0.0)
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump({"best": best}, file)
        os.replace(file.name, path)  # whole or not at all, whoever reads meanwhile
    except OSError:
        pass


def read_best(path: Path) -> float | None:
    """The best share that is kept at `path`; None where there is none, or none that can be read."""
    try:
        best = float(json.loads(path.read_text(encoding="utf-8"))["best"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return best if 0 <= best <= 1 else None


def progress_folder() -> Path:
    """The folder of what is kept: the reader's workspace, or else a folder at home."""
    if os.environ.get(ASKED):
        return Path(os.environ[ASKED])
    root = root_of(Path.cwd())
    if root is None:
        return Path.home() / ".course_lib" / FOLDER
    return (root if (root / ".given.json").exists() else root / "workspace") / FOLDER


def root_of(folder: Path) -> Path | None:
    """The nearest folder above that has notebooks and exercises: the reader's copies, or the course itself."""
    return next((each for each in (folder, *folder.parents)
                 if (each / "notebooks").is_dir() and (each / "exercises").is_dir()), None)


def link_to(chapter: int) -> str:
    """The way from the notebook to the exercises of `chapter`."""
    root = root_of(Path.cwd())
    found = sorted(root.glob(f"exercises/{chapter:02}_*/{chapter:02}_*.ipynb")) if root else []
    found = [path for path in found if path.stem == path.parent.name]  # not a newer copy beside it
    return Path(os.path.relpath(found[0], Path.cwd())).as_posix() if found else ""
