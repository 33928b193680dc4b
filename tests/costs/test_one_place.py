"""Each number and each formula has one home: facts/ alone makes a Fact, nobody defines what costs/ defines, and what a
wire carries is divided in costs.links.Link.of_rate alone: everything else asks a Link or a Group for seconds."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COURSE = sorted((ROOT / "course_lib").rglob("*.py"))
READERS = [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("solutions/*/*.ipynb"))]
# Divided by what is called a rate of bytes; memory and storage are no wires. A function's own arguments have no dot.
A_RATE_BELOW = re.compile(r"/=? *[\w.\[\]]+\.(?!memory_|operand_|storage_|copy_)(one_way\w*|(\w+_)?bytes_per_s|"
                          r"bus_bandwidth)\b")
ABOVE = ("widgets", "grading", "planner", "hybrid_parallel", "facts", "command_line.py")  # their words are their own
A_FACT = re.compile(r"\bFact\(")


def lines_with(what, files, *but):
    return [f"{path.relative_to(ROOT)}:{number}" for path in files
            if not path.relative_to(ROOT / "course_lib" if path in COURSE else ROOT).as_posix().startswith(but)
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if what.search(line)]


@pytest.mark.parametrize("what, files, home", [
    (A_RATE_BELOW, COURSE + READERS, "costs/links.py"), (A_FACT, COURSE, "facts/")], ids=["rates", "facts"])
def test_rates_are_divided_and_facts_are_made_at_home(what, files, home):
    assert lines_with(what, files, home) == []
    for found in {A_RATE_BELOW: ("M / wire.one_way_bytes_per_s", "M /= group.bytes_per_s('send')"),
                  A_FACT: ("facts.Fact(1)", "Fact(1)")}[what]:
        assert what.search(found)


def test_a_formula_has_one_definition():
    homes = defaultdict(list)
    for path in COURSE:
        if path.relative_to(ROOT / "course_lib").parts[0] in ABOVE:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
            names = {name.id for name in targets if isinstance(name, ast.Name) and name.id.isupper()}
            for name in names | ({node.name} if isinstance(node, ast.FunctionDef | ast.ClassDef) else set()):
                homes[name].append(path.relative_to(ROOT / "course_lib").as_posix())
    assert len(homes["training_memory"]) == 1
    assert {name: places for name, places in homes.items()
            if len(places) > 1 and any(place.startswith("costs/") for place in places)} == {}
