"""One-change mutants by cosmic-ray's operators, and who notices them: the tests of course_lib, or an exercise's check.

    python -m tools.mutants [COUNT] [--seed N]        COUNT of the library, as many of each package
    make exercises MUTANTS=1 [NAME=02_collectives]    25 of each solution: tools/exercises.py

Of the library the tests that mirror it run, in a copy of this tree, until one fails; build/mutants.json has them all.
What cosmic-ray has no operator for is added here: a statement left out, `-=` or `=` for `+=`, two arguments exchanged,
one name for another. What survives is equivalent, or the tests, or the check, have a hole. Exit status 1 where a mutant
of the library survives. A mutant of a solution that is a right answer stands in right_mutants.md beside it, with the
reason: `## 4.8`, a line `- reason`, and under it the changed lines as this prints them; the others are printed.
"""

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, count, pairwise
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.registry import exercises_of
from tools.solutions import ROOT, solution_cell

# Of the library they fail at once: bits of floats, types of annotations, exceptions and decorators that do not exist.
LEFT = re.compile(r"_(?:BitOr|BitAnd|BitXor|LShift|RShift)(?:_|$)|ExceptionReplacer|Decorator|Variable")
OURS = "edited"
MOST = 25  # of a solution
LONGEST_S = 900  # of one mutant; the tests' own limit ends what hangs
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def operators() -> list[str]:
    """cosmic-ray's, and ours. SystemExit where it is not installed."""
    try:
        from cosmic_ray.plugins import operator_names
    except ImportError:
        raise SystemExit("mutants are made by cosmic-ray: pip install cosmic-ray") from None
    return [*sorted(operator_names()), OURS]


def mutants(source: str, names: Sequence[str]) -> Iterator[str]:
    """`source` with one change each by these operators, none twice; of a solution inside its marks."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    head, mark, rest = source.partition("### BEGIN SOLUTION")
    tail = rest.partition("### END SOLUTION")[2]
    seen = {ast.dump(ast.parse(source))}

    def changed_by(name: str) -> Iterator[str]:
        if name == OURS:
            yield from edited(source)
            return
        with suppress(TypeError, ValueError):  # an operator that wants arguments, as that which renames variables
            places, operator = count(), get_operator(name)()
            yield from iter(lambda: mutate_code(source, operator, next(places)), None)

    for changed in chain(*map(changed_by, names)):
        try:
            tree = ast.dump(ast.parse(changed))
        except SyntaxError:
            continue
        if changed.startswith((head + mark) * bool(mark)) and changed.endswith(tail) and tree not in seen:
            seen.add(tree)
            yield changed


def edited(source: str) -> Iterator[str]:
    """`source` with one statement, argument or name changed."""
    text = source.encode()  # an ast's columns are bytes
    begins = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)} | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}

    def place(node: ast.AST) -> tuple[int, int]:
        return begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset

    def with_edit(start: int, stop: int, new: bytes) -> str:
        return (text[:start] + new + text[stop:]).decode()

    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Nonlocal)):
            yield with_edit(*place(node), b"pass")
        if isinstance(node, ast.AugAssign):
            start, stop = place(node.target)[1], place(node.value)[0]
            yield with_edit(start, stop, b" = ")
            yield with_edit(start, stop, b" += " if isinstance(node.op, ast.Sub) else b" -= ")
        if isinstance(node, ast.Call):
            for (start, middle), (begin, stop) in pairwise(map(place, node.args)):
                yield with_edit(start, stop, text[begin:stop] + text[middle:begin] + text[start:middle])
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in own:
            yield from (with_edit(*place(node), other.encode()) for other in sorted(own - {node.id}))


def change(source: str, mutant: str) -> str:
    """The first line that differs, before and after."""
    lines = difflib.ndiff(source.splitlines(), mutant.splitlines())
    differs = [line for line in lines if line[0] in "-+" and line[2:].strip()]
    old, new = (next((line[2:].strip() for line in differs if line[0] == sign), "(removed)") for sign in "-+")
    return f"{old}  ->  {new}"


def shown_right(path: Path) -> dict[str, list[str]]:
    """By exercise the changed lines of right_mutants.md beside the notebook. ValueError if one has no reason."""
    text = path.with_name("right_mutants.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (\S+)$", text, flags=re.MULTILINE)
    for number, text in zip(parts[::2], parts[1::2]):
        if first := re.match(r"\s+(?!- )(.+)", text):
            raise ValueError(f"{path.parent.name}/right_mutants.md, {number}: no reason above {first[1]!r}")
    return {number: re.findall(r"^ {6}(.+)$", text, re.MULTILINE) for number, text in zip(parts[::2], parts[1::2])}


def survivors(path: Path, passes: Callable[[str, str, str], bool]) -> Iterator[str]:
    """A line for each mutant of a chapter's solutions that passes and is not known to be right; then the counts.

    passes: whether the solution to an exercise passes with one text in the place of another.
    """
    ran = alive = right = 0
    shown = shown_right(path)
    for number in (each.number for each in exercises_of(int(path.name[:2]))):
        source = solution_cell(path, number)
        drawn = list(mutants(source, operators()))
        random.Random(f"mutants of {number}").shuffle(drawn)
        for mutant in tqdm(drawn[:MOST], desc=number, unit="mutant", disable=None):
            ran += 1
            with suppress(Exception):  # it does not even get to the check
                if not passes(number, source, mutant):
                    continue
                if (line := change(source, mutant)) in shown.get(number, ()):
                    right += 1
                else:
                    alive += 1
                    yield f"{number} survives: {line}"
    yield (f"{path.stem}: {ran} mutants, {right} of them right answers; of the others {ran - right - alive} are "
           f"refused, {alive} survive")


# Of the library


def packages() -> dict[str, list[Path]]:
    """The files of course_lib by package that has tests of its own."""
    return {file.parent.name: sorted(set(file.parent.rglob("*.py")) - {file})
            for file in sorted(Path(ROOT, "course_lib").glob("*/__init__.py"))
            if Path(ROOT, "tests", file.parent.name).is_dir()}


def draw(files: list[Path], chance: random.Random, names: list[str]) -> tuple[Path, str, str]:
    """(file, its text, a mutant's text): a file by its length, one operator or one of ours, any place."""
    while True:
        file = chance.choices(files, [file.stat().st_size for file in files])[0]
        text = file.read_text(encoding="utf-8")
        if found := list(mutants(text, [chance.choice([*names, *[OURS] * (len(names) // 4)])])):
            return file, text, chance.choice(found)


def killer(copy: Path, package: str) -> str | None:
    """The first test of the package that fails in `copy`; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not browser"]
    try:
        finished = subprocess.run([*command, f"tests/{package}"], cwd=copy, capture_output=True, text=True,
                                  timeout=LONGEST_S, env=os.environ | {"PYTHONPATH": str(copy)})
    except subprocess.TimeoutExpired:
        return f"ended after {LONGEST_S} s"
    if finished.returncode == 0:
        return None
    return (FAILED.findall(finished.stdout) or [finished.stdout[-300:] + finished.stderr[-300:]])[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    chance, found, names = random.Random(asked.seed), [], [each for each in operators() if not LEFT.search(each)]
    of_packages = packages()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "build", "workspace*", "dist"))
        for number in tqdm(range(asked.count), unit="mutant", disable=None):
            package = list(of_packages)[number % len(of_packages)]
            file, text, mutant = draw(of_packages[package], chance, names)
            there = copy / file.relative_to(ROOT)
            there.write_text(mutant, encoding="utf-8")
            test = killer(copy, package)
            there.write_text(text, encoding="utf-8")
            found.append({"file": str(file.relative_to(ROOT)), "change": change(text, mutant), "killed_by": test})
            print(f"{found[-1]['file']} {found[-1]['change']}\n    {test or 'SURVIVED'}", flush=True)
            Path(ROOT, "build").mkdir(exist_ok=True)
            Path(ROOT, "build", "mutants.json").write_text(json.dumps({"seed": asked.seed, "mutants": found}, indent=1))
    survived = sum(each["killed_by"] is None for each in found)
    print(f"{len(found) - survived} of {len(found)} were killed, seed {asked.seed}")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
