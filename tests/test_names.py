"""Functions are named by a verb and a noun, or by a noun; a class name means one class."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
IRREGULAR = frozenset("""
    begun broken brought built chosen dealt done drawn fallen felt forgotten found given gone grown heard held hidden
    kept known laid lent lost made meant met paid said seen sent shown sold sought spent stood struck taken
    taught thought thrown told torn understood won worn written
""".split())
# Verbs and nouns that end like participles, the name of a schedule, and a method that torch calls.
FINE = frozenset("seed need feed speed exceed proceed embed red bed interleaved is_completed".split())
# One page that is read from top to bottom, with the chapters' classes once more, each a few lines long.
ONE_PAGE = ROOT / "course_lib/nano3d.py"


def ends_in_participle(name: str) -> bool:
    last = name.strip("_").rsplit("_", 1)[-1]
    return not {name, last} & FINE and (last.endswith("ed") or last in IRREGULAR)


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "course_lib").rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_no_function_is_named_by_a_participle():
    named = [f"{path.relative_to(ROOT)}:{node.lineno} {node.name}" for path, tree in trees() for node in ast.walk(tree)
             if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node)
             and ends_in_participle(node.name)]
    assert not named, "expected a verb and a noun, or a noun:\n" + "\n".join(named)


def test_a_class_name_means_one_class():
    places = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and path != ONE_PAGE:
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}
