"""What an exercise's text stresses, and the trial that decides it: leave one term out, and a trial refuses the rest.

    TERMS = [term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"), ...]

stand in solutions/NN_name/terms.py: a term in words, what stands for it in the solution, and what somebody writes who
leaves it out. `python -m tools.terms [02_collectives ...]` prints each with the first trial that refuses it; at more
seeds with --seeds 10. With --write it writes the table of all chapters to docs/teaching/terms.md.
"""

import argparse
import runpy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import examine
from tools.solutions import ROOT, SOLUTIONS, code_cells, names_of

PAGE = ROOT / "docs" / "teaching" / "terms.md"
HEAD = """# What each check decides

Written by `python -m tools.terms --write`. A line has one thing that the text of an exercise stresses, and the first
trial that refuses a solution which leaves it out. The trials are those of self-study; in a class the drawn ones are
others, and the rest are the same.
"""


@dataclass(frozen=True)
class Term:
    """One thing that the text of an exercise stresses, as an edit of the solution that leaves it out."""

    number: str
    words: str
    stands: str  # in the solution's cell, everywhere where it stands
    without: str


def term(number: str, words: str, stands: str, without: str) -> Term:
    return Term(number, words, stands, without)


def terms(path: Path) -> list[Term]:
    """Those of the chapter whose solutions' notebook is at `path`."""
    return runpy.run_path(str(path.with_name("terms.py")))["TERMS"]


def left_out(path: Path, left: Term) -> dict[str, object]:
    """The names of the notebook at `path`, with the solution that leaves the term out. ValueError where it has none."""
    function = exercise(left.number).function
    source = next(cell.source for cell in code_cells(path) if f"def {function}(" in cell.source)
    if left.stands not in source:
        raise ValueError(f"{path.parent.name}/terms.py, {left.number}, {left.words}: {left.stands!r} is not in the "
                         f"solution's cell")
    names = dict(names_of(path))
    exec(compile(source.replace(left.stands, left.without), f"{left.number} without {left.words}", "exec"), names)
    return names


def deciding(path: Path, left: Term, seed: int) -> str | None:
    """The label of the trial that refuses the solution without the term; None where it passes."""
    asked = exercise(left.number)
    found = examine(asked, left_out(path, left)[asked.function], seed)
    return None if found.verdict is Verdict.CORRECT else asked.trials(seed)[found.trial].label


def table(path: Path, num_seeds: int) -> Iterator[tuple[str, str, str]]:
    """(number, words, trial) of each term of a chapter: the trial of seed 0 that refuses it, or where nothing does."""
    for left in tqdm(terms(path), desc=path.stem, unit="term", disable=None):
        labels = [deciding(path, left, seed) for seed in range(num_seeds)]
        free = [seed for seed, label in enumerate(labels) if label is None]
        yield left.number, left.words, f"PASSES at seeds {free}" if free else labels[0]


def text_of(rows: Iterable[tuple[str, str, str]]) -> str:
    """The page for teachers."""
    lines = []
    for number, own in groupby(rows, key=lambda row: row[0]):
        lines += [f"\n## {number} {exercise(number).function}\n", "| what the text stresses | trial |", "|---|---|"]
        lines += [f"| {words.replace('|', chr(92) + '|')} | {trial} |" for _, words, trial in own]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="of the trials, 0 to SEEDS - 1")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}, of all chapters")
    asked = parser.parse_args()
    rows = []
    for name in known if asked.write else asked.names or known:
        for row in table(known[name], asked.seeds):
            rows.append(row)
            print(*row, sep=" | ", flush=True)
    if asked.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text_of(sorted(rows, key=lambda row: [int(part) for part in row[0].split(".")])),
                        encoding="utf-8")


if __name__ == "__main__":
    main()
