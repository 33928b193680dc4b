"""Small changes of the solutions, each of which an exercise should refuse: what survives is right, or a hole.

    pip install cosmic-ray
    python -m tools.answers mutants [02_collectives ...] [--at-most 25] [--only 2.3]

cosmic-ray makes mutants of each solution (`+` for `-`, `<` for `<=`, 2 for 1, no negation, ...); what it has no
operator for is added here: a statement left out, `-=` or `=` for `+=`, two arguments exchanged, one name for another.
Of each exercise at most so many run, drawn by a fixed seed. A survivor that is a right answer stands in
right_mutants.md beside the solutions, with the reason: `## 4.8`, a line `- reason`, and under it the changed lines as
this prints them. It prints the other survivors, which a person has to look at, and the counts.
"""

import ast
import difflib
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, chain, pairwise
from pathlib import Path

from tqdm import tqdm

from course_lib.grading.exercise import SEED
from course_lib.grading.registry import exercises_of
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import Attempts
from tools.answers import Row, at_home, without
from tools.solutions import solution_cell


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

    def changed_by(name: str) -> Iterator[str]:
        for occurrence in range(1000):
            try:
                changed = mutate_code(source, get_operator(name)(), occurrence)
            except (TypeError, ValueError):  # an operator that wants arguments, as that which renames variables
                return
            if changed is None:
                return
            yield changed

    for changed in chain(*map(changed_by, sorted(operator_names())), edited(source)):
        try:
            tree = ast.dump(ast.parse(changed))
        except SyntaxError:
            continue
        if changed.startswith(head + mark) and changed.endswith(tail) and tree not in seen:
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


def survivors(path: Path, only: str, at_most: int, attempts: Attempts) -> Iterator[str]:
    """A line for each mutant of a chapter's solutions that passes and is not known to be right; then the counts."""
    ran = alive = right = 0
    shown = shown_right(path)
    for number in (each.number for each in exercises_of(int(path.name[:2])) if only in ("", each.number)):
        source = solution_cell(path, number)
        drawn = list(mutants(source))
        random.Random(f"mutants of {number}").shuffle(drawn)
        for mutant in tqdm(drawn[:at_most], desc=number, unit="mutant", disable=None):
            row, ran = Row(number, "mutant", change(source, mutant), edit=(source, mutant)), ran + 1
            with suppress(Exception):  # it does not even get to the check
                verdict, _ = at_home(attempts)(without(path, row), SEED)
                if verdict is Verdict.CORRECT and row.says in shown.get(number, ()):
                    right += 1
                elif verdict is Verdict.CORRECT:
                    alive += 1
                    yield f"{number} survives: {row.says}"
    yield (f"{path.stem}: {ran} mutants, {right} of them right answers; of the others {ran - right - alive} are "
           f"refused, {alive} survive")
