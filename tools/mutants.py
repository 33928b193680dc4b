"""Small changes of the solutions, each of which an exercise should refuse: what survives is right, or a hole.

    pip install cosmic-ray
    python -m tools.mutants [02_collectives ...] [--at-most 25] [--only 2.3]

cosmic-ray makes the mutants of each solution (`+` for `-`, `<` for `<=`, 2 for 1, no negation, ...). Of each exercise
at most so many run, drawn by a fixed seed. It prints the survivors, which a person has to look at, and the counts.
"""

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.exercise import Exercise
from course_lib.grading.registry import exercises_of
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import examine
from tools.solutions import SOLUTIONS, code_cells, names_of


def mutants(source: str) -> Iterator[str]:
    """`source` with one change each, inside the solution's marks, and none twice."""
    try:
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator, operator_names
    except ImportError:
        raise SystemExit("mutants are made by cosmic-ray: pip install cosmic-ray") from None
    head, mark, _ = source.partition("### BEGIN SOLUTION")
    tail = source.partition("### END SOLUTION")[2]
    seen = {ast.dump(ast.parse(source))}
    for name in sorted(operator_names()):
        for occurrence in range(1000):
            try:
                changed = mutate_code(source, get_operator(name)(), occurrence)
            except (TypeError, ValueError):  # an operator that wants arguments, as that which renames variables
                break
            if changed is None:
                break
            if not (changed.startswith(head + mark) and changed.endswith(tail)):
                continue
            try:
                tree = ast.dump(ast.parse(changed))
            except SyntaxError:
                continue
            if tree not in seen:
                seen.add(tree)
                yield changed


def survivors(path: Path, asked: Exercise, at_most: int) -> tuple[int, list[str]]:
    """How many mutants ran, and the changed lines of those that pass."""
    source = next(cell.source for cell in code_cells(path) if f"def {asked.function}(" in cell.source)
    drawn = list(mutants(source))
    random.Random(f"mutants of {asked.number}").shuffle(drawn)
    passed = []
    for mutant in tqdm(drawn[:at_most], desc=asked.number, unit="mutant", disable=None):
        names = dict(names_of(path))
        try:
            exec(compile(mutant, f"mutant of {asked.number}", "exec"), names)
            is_right = examine(asked, names[asked.function]).verdict is Verdict.CORRECT
        except Exception:  # it does not even get to the check
            is_right = False
        if is_right:
            passed.append(next(f"{old.strip()}  ->  {new.strip()}" for old, new in zip(
                source.splitlines(), mutant.splitlines()) if old != new))
    return min(at_most, len(drawn)), passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    parser.add_argument("--at-most", type=int, default=25, help="mutants of an exercise")
    parser.add_argument("--only", default="", metavar="NUMBER", help="one exercise, such as 2.3")
    given = parser.parse_args()
    for name in given.names or known:
        ran = alive = 0
        for asked in exercises_of(int(name[:2])):
            if given.only in ("", asked.number):
                number, passed = survivors(known[name], asked, given.at_most)
                ran, alive = ran + number, alive + len(passed)
                for line in passed:
                    print(f"{asked.number} survives: {line}", flush=True)
        print(f"{name}: {ran - alive} of {ran} mutants refused ({100 * (ran - alive) / max(ran, 1):.1f} %)", flush=True)


if __name__ == "__main__":
    main()
