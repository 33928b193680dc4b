"""What an exercise's text stresses, and the trial that decides it: leave one term out, and a trial refuses the rest.

    TERMS = [term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"), ...]

stand in solutions/NN_name/terms.py: a term in words, what stands for it in the solution, and what somebody writes who
leaves it out. `python -m tools.terms [02_collectives ...]` prints each with the first trial that refuses it; at more
seeds with --seeds 10.
"""

import argparse
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import examine
from tools.solutions import SOLUTIONS, code_cells, names_of


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
    """What refuses the solution without the term, with the trial's label; None where it passes."""
    asked = exercise(left.number)
    found = examine(asked, left_out(path, left)[asked.function], seed)
    return None if found.verdict is Verdict.CORRECT else found.cause


def table(path: Path, num_seeds: int) -> Iterator[str]:
    """A line for each term: what refuses it, or at which seeds nothing does."""
    for left in tqdm(terms(path), desc=path.stem, unit="term", disable=None):
        causes = [deciding(path, left, seed) for seed in range(num_seeds)]
        free = [seed for seed, cause in enumerate(causes) if cause is None]
        said = f"PASSES at seeds {free}" if free else causes[0].splitlines()[0][:100]
        yield f"{left.number} | {left.words} | {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    parser.add_argument("--seeds", type=int, default=1, help="of the trials, 0 to SEEDS - 1")
    asked = parser.parse_args()
    for name in asked.names or known:
        for line in table(known[name], asked.seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
