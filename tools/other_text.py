"""python -m tools.other_text FILE: write another English text than Python's help topics, for COURSE_TEXT=FILE.

It too is on every machine: what the modules of the standard library say of themselves.
"""

import ast
import sys
import sysconfig
from pathlib import Path

SHORTEST = 200  # characters; below are lists of arguments


def docstrings(file: Path) -> list[str]:
    """Of a module, its classes and its functions."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, documented)]
    return [said for said in map(ast.get_docstring, nodes) if said]


def text() -> str:
    """Each docstring once, in the order of the files: about 700,000 characters."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "\n\n".join(dict.fromkeys(said for file in files for said in docstrings(file) if len(said) >= SHORTEST))


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text(), encoding="utf-8")
