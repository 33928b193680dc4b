"""How many of course_lib's public names explain themselves: `python -m tools.docstrings [-v] [PART ...]`.

A public name is a class or function at the top of a module, or a method of such a class, whose name does not begin
with an underscore. It counts as explained where its own body has a docstring. What a name inherits does not count,
nor do nested functions, constants and the fields of a dataclass. A comment is one on a line of its own or behind code;
what the linter reads (noqa) is none.

The table has a line per package: public names, how many are explained, comments per 100 lines of file, and doctest
examples (`>>>`). `-v` lists the names without a docstring; PART keeps the files whose path contains it.
"""

import ast
import doctest
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass
class Counts:
    names: int = 0
    explained: int = 0
    lines: int = 0
    comments: int = 0
    examples: int = 0

    def add(self, other: "Counts") -> None:
        for field in vars(other):
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def row(self, title: str) -> str:
        share = self.explained / self.names if self.names else 1.0
        density = 100 * self.comments / max(self.lines, 1)
        return f"{title:<22}{self.names:>7}{self.explained:>11}{share:>7.0%}{density:>10.1f}{self.examples:>10}"


def public_names(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """(name, definition) of each public class, function and method, in the order of the file."""
    for node in body:
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                yield from ((f"{node.name}.{name}", child) for name, child in public_names(node.body))


def count(path: Path) -> tuple[Counts, list[str]]:
    """One file's counts, without its comments, and its public names without a docstring, as `path:line name`."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    named = list(public_names(tree.body))
    bare = [f"{path.relative_to(ROOT)}:{node.lineno} {name}" for name, node in named if not ast.get_docstring(node)]
    documented = (node for node in ast.walk(tree) if isinstance(node, (*DEFINITIONS, ast.Module)))
    docstrings = [ast.get_docstring(node) or "" for node in documented] if ">>> " in text else []
    examples = sum(len(doctest.DocTestParser().get_examples(docstring)) for docstring in docstrings)
    return Counts(len(named), len(named) - len(bare), len(text.splitlines()), 0, examples), bare


def num_comments(path: Path) -> int:
    """Comments in the file, those of several lines counted line by line."""
    with path.open(encoding="utf-8") as file:
        return sum(token.type == tokenize.COMMENT and "noqa" not in token.string
                   for token in tokenize.generate_tokens(file.readline))


def main(arguments: list[str]) -> None:
    parts = [part for part in arguments if part != "-v"]
    packages, bare = defaultdict(Counts), []
    for path in sorted((ROOT / "course_lib").rglob("*.py")):
        place = path.relative_to(ROOT / "course_lib").as_posix()
        if parts and not any(part in place for part in parts):
            continue
        counts, without = count(path)
        counts.comments = num_comments(path)
        packages[place.partition("/")[0]].add(counts)
        packages["all"].add(counts)
        bare += without
    if "-v" in arguments:
        print("\n".join(bare))
    print(f"{'':<22}{'names':>7}{'explained':>11}{'':>7}{'comments':>10}{'examples':>10}")
    for title in sorted(packages, key=lambda title: (title == "all", title)):
        print(packages[title].row(title))


if __name__ == "__main__":
    main(sys.argv[1:])
