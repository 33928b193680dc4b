"""What a wire carries is divided in one place, costs.links.Link.of_rate: everything else asks a Link or a Group."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = ("course_lib/costs/links.py",)
# Rates of memory and of storage, which are no wires, and what passes over memory are measured by.
NO_WIRES = ("memory_bytes_per_s", "operand_bytes_per_s", "storage_bytes_per_s", "copy_bytes_per_s")
OF_MEMORY = ("course_lib/costs/kernels.py",)
UNITS = (1e6, 1e9, 1e12, 1e15)
LEAST, MOST = 1e7, 1e13  # bytes/s: numbers in a code that divide like a bandwidth; beyond are FLOPs


def sources() -> Iterator[tuple[str, ast.AST]]:
    """(place, tree) of each file of course_lib, and of each code cell of notebooks and solutions."""
    for path in sorted((ROOT / "course_lib").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in ALLOWED + OF_MEMORY:
            yield name, ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*/*.ipynb")]):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield path.relative_to(ROOT).as_posix(), ast.parse("\n".join(
            "".join(line for line in cell["source"] if not line.startswith(("%", "!")))
            for cell in cells if cell["cell_type"] == "code"))


def last_name(node: ast.AST) -> str:
    """`bytes_per_s` of `wire.bytes_per_s`, `group.bytes_per_s("send")` and `rates[0].bytes_per_s`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return last_name(inner)
    return ""


def is_rate(name: str) -> bool:
    return name not in NO_WIRES and (
        name.endswith("bytes_per_s") or name.startswith("one_way") or name == "bus_bandwidth")


def holds_rate(node: ast.AST) -> bool:
    """Whether a value is a rate itself, or rates side by side: no seconds made of one, no arguments of a call."""
    match node:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(map(holds_rate, parts))
        case ast.GeneratorExp(elt=one) | ast.ListComp(elt=one) | ast.DictComp(value=one):
            return holds_rate(one)
        case ast.Dict(values=parts):
            return any(map(holds_rate, parts))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return holds_rate(left) or holds_rate(right)
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=number)):
            return number in UNITS and holds_rate(left)
        case ast.Attribute(attr="value", value=inner):
            return is_rate(last_name(inner))
    return is_rate(last_name(node))


def divisions(tree: ast.AST) -> Iterator[int]:
    """Lines in which something is divided by a rate: by its name, by one that was last given a rate, or a bare number.

    A function may divide by its own arguments: so readers' functions are written.
    """
    given: dict[str, list[tuple[int, bool]]] = {}  # of a name: the lines that give it a value, and whether of a rate
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for name in (inner for target in node.targets for inner in ast.walk(target)):
                if isinstance(name, ast.Name):
                    given.setdefault(name.id, []).append((node.lineno, holds_rate(node.value)))
    own: dict[ast.AST, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            for inner in ast.walk(node):
                own.setdefault(inner, set()).update(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div | ast.FloorDiv):
            divisor = node.right if isinstance(node, ast.BinOp) else node.value
            name = last_name(divisor)
            bare = isinstance(divisor, ast.Constant) and isinstance(divisor.value, int | float) and (
                LEAST <= divisor.value <= MOST and divisor.value not in UNITS)
            last = max((each for each in given.get(name, []) if each[0] <= node.lineno), default=(0, False))
            if (bare or is_rate(name) or last[1]) and name not in own.get(node, ()):
                yield node.lineno


@pytest.fixture(scope="module")
def found() -> list[str]:
    return [f"{place}:{line}" for place, tree in sources() for line in divisions(tree)]


def test_a_rate_is_divided_in_one_place(found):
    assert found == []


def test_there_is_one_such_place_and_it_would_be_found():
    links = (ROOT / ALLOWED[0]).read_text(encoding="utf-8")
    assert links.count("/ above_zero(bytes_per_s") == 1
    for line in ("M / wire.one_way_bytes_per_s", "M / group.bytes_per_s('send')", "W = wire.one_way_bytes_per_s\nF / W",
                 "W, V = (each.bytes_per_s('send') for each in groups)\nF / V", "M / 50e9", "M /= link.bytes_per_s",
                 "W = curve.bus_bandwidth[M].value * 1e9\nM / W"):
        assert [*divisions(ast.parse(line))], line


def test_what_is_no_wires_rate_is_not():
    for line in ("M / rates.memory_bytes_per_s", "x / 1e9", "tokens / 2**20", "def f(W):\n    return M / W",
                 "s = group.seconds('send', M)\nM / s", "group.bytes_per_s('send') / 1e9",
                 "def my_time(M, bytes_per_s):\n    return M / bytes_per_s", "W = 2\nM / W\nW = wire.bytes_per_s"):
        assert not [*divisions(ast.parse(line))], line
