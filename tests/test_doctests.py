"""Every `>>>` in a docstring of course_lib is run and prints what stands below it.

The examples are found by reading the files, so that collecting them imports nothing: neither torch nor packages that
load on use. An example sees the names of its own module, and needs no ranks.
"""

import ast
import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARSER = doctest.DocTestParser()


def documented(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """(dotted name, definition) of a module and of all that is defined in it, at any depth."""
    yield name, node
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from documented(child, f"{name}.{child.name}")


def found() -> Iterator[tuple[str, str, str]]:
    """(module, dotted name, docstring) of whatever has an example."""
    for path in sorted((ROOT / "course_lib").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ">>> " in text:
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for name, node in documented(ast.parse(text), module):
                docstring = ast.get_docstring(node) or ""
                if ">>> " in docstring:
                    yield module, name, docstring


@pytest.mark.parametrize("module, name, docstring",
                         [pytest.param(*each, id=each[1].removeprefix("course_lib.")) for each in found()])
def test_an_example_prints_what_stands_below_it(module: str, name: str, docstring: str) -> None:
    names = dict(vars(import_module(module)))
    examples = PARSER.get_doctest(docstring, names, name, None, None)
    printed: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(examples, out=printed.append)
    assert not failed, "".join(printed)
