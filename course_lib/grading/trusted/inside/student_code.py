"""What of a student's notebook is executed, and the names that it must not use. Read here, executed in `ranks`.

The rule, which TEACHING.md and the first cell of each exercise notebook repeat. From the solution cell: all statements.
From every other code cell above the check cell: what the solution needs of it (needs.py). One by one, in the order of
the notebook; a statement that fails is passed over. Magics and shell commands are left out. A value that the solution
lacks for one of these reasons is named, with the reason, in class and by `check` at home.
"""

import __future__

import ast
import re
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from course_lib.grading.trusted.inside.needs import (
    DEFINITIONS,
    Needs,
    Statement,
    bodies_of,
    changes,
    foresee_failure,
    used,
)
from course_lib.runtime.operations import list_collectives

ASKED = "that is what you are asked to write"
MAX_SOURCE = 1 << 20  # characters of all cells together
FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
HARMLESS_CELL_MAGICS = {"%%time", "%%timeit", "%%capture", "%%prun"}
TIMED = re.compile(r"^(\s*)%time[ \t]+(?=\S)", re.MULTILINE)  # the statement behind it runs like any other
NO_MAGICS = "magics and shell commands are left out"

FUNCTIONS_OF = list_collectives()  # by which a reader could reach each of them
OURS = "course_lib.collectives"  # refused also where the name is hidden, as the library's collectives are
OFFERED = ("runtime", "reference", "pictures", "facts")  # of course_lib; the rest is what exercises ask for
CHECK = "course_lib.grading.check"  # which every notebook imports


@dataclass
class Code:
    """Statements ready to be executed, and why this run need not begin at all."""

    statements: list[Statement] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # file name in tracebacks -> the cell's text
    refusal: str | None = None
    lost: dict[str, str] = field(default_factory=dict)  # names of other cells that have no value -> the sentence
    failed: list[str] = field(default_factory=list)  # the sentences of those that were executed

    def imports(self) -> set[str]:
        """The modules that the statements import, in bodies of functions, too, or will as `torch.compile` does."""
        compiles = any("torch.compile" in source for source in self.sources.values())
        return {name for each in self.statements for name in used(each.code, "IMPORT_NAME")} | (
            {"torch._dynamo"} if compiles else set())


def prepare(cells: list[dict[str, Any]], operations: frozenset[str] | None, function: str = "") -> Code:
    """The code of `cells` (source, name, own: whether it is the exercise's own solution cell), for its `function`."""
    code = Code()
    if sum(len(cell["source"]) for cell in cells) > MAX_SOURCE:
        code.refusal = f"the cells hold more than {MAX_SOURCE:,} characters"
        return code
    statements: list[Statement] = []
    flags = 0
    for cell in cells:
        file = f"<{cell['name']}>"
        code.sources[file] = cell["source"]
        try:
            tree, found, flags = read_cell(cell["source"], file, flags, cell["own"])
        # ValueError: null characters; what is nested too deeply for a parser, or for IPython's, is one of the others
        except (SyntaxError, ValueError, RuntimeError, MemoryError) as error:
            if cell["own"]:
                code.refusal = code.refusal or does_not_parse(cell["name"], error)
            continue
        if cell["own"]:
            code.refusal = code.refusal or library_call(tree, operations)
        for node, statement, line in found:
            if statement is None:
                code.lost |= {name: lost_words(name, line, NO_MAGICS) for name in changes(node)}
            else:
                statements.append(Statement(node, statement, cell["own"], line))
    code.statements = Needs(statements, function).select()
    bodies = bodies_of(code.statements)
    for each in code.statements:
        each.given, each.why = tuple(sorted(each.gives())), foresee_failure(each, bodies)
    return code


@lru_cache(1000)
def read_cell(source: str, file: str, flags: int, own: bool
              ) -> tuple[ast.Module, list[tuple[ast.stmt, CodeType | None, str]], int]:
    """The tree of a cell; its statements, with their code, None for magics, and first line; the flags of `from
    __future__` behind it. SyntaxError for what is not Python; a `return` in a cell that is not `own` is passed over.
    """
    tree, lines, found = parse(source), source.splitlines(), []
    for node in tree.body:
        statement = None
        try:
            if not uses_ipython(node):
                statement = compile(ast.Module([node], []), file, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                                    dont_inherit=True)  # a cell may await
                flags |= statement.co_flags & FUTURES
        except SyntaxError:
            if own:
                raise
            continue
        found.append((node, statement, "".join(lines[node.lineno - 1:node.lineno]).strip()[:80]))
    return tree, found, flags


def lost_words(name: str, line: str, why: str) -> str:
    """The sentence for a name that has no value in class."""
    return f"{name} comes from another cell, by `{line}`. In class {why}: give it its value in the solution cell"


def parse(source: str) -> ast.Module:
    """The syntax tree, without magics. SyntaxError for what is not Python either way."""
    lines = source.lstrip().splitlines(keepends=True)
    if lines and lines[0].startswith("%%"):
        if lines[0].split()[0] not in HARMLESS_CELL_MAGICS:
            raise SyntaxError(f"{lines[0].split()[0]} makes this cell something else than Python")
        source = "\n" + "".join(lines[1:])
    try:
        return ast.parse(source)
    except SyntaxError:
        if not any(mark in source for mark in "%!?"):
            raise
        from IPython.core.inputtransformer2 import TransformerManager  # slow to import, seldom needed
        return ast.parse(TransformerManager().transform_cell(TIMED.sub(r"\1", source)))


def does_not_parse(name: str, error: Exception) -> str:
    """The sentence for a cell that is no Python, with the line."""
    line = f" (line {error.lineno}: {(error.text or '').strip()[:200]})" if getattr(error, "lineno", None) else ""
    said = getattr(error, "msg", error) if str(error) else "it is nested too deeply"
    return f"{name} does not parse: {said}{line}"


def uses_ipython(node: ast.stmt) -> bool:
    """Whether a statement that is no definition is a magic or a shell command."""
    return not isinstance(node, (*DEFINITIONS, ast.Import, ast.ImportFrom)) and any(
        isinstance(part, ast.Name) and part.id == "get_ipython" for part in ast.walk(node))


def library_call(tree: ast.Module, operations: frozenset[str] | None) -> str | None:
    """The first use by name of a library's collective or of the course's own answers, as a refusal; None without one.

    operations: of torch.distributed that may be called, None for all.
    """
    refused = {name for op, names in FUNCTIONS_OF.items() if operations is not None and op not in operations
               for name in names}
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    aliases.setdefault("dist", "torch.distributed")  # as the notebook's first cell has it
    names = [*aliases.values(),
             *(full_name(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute))]
    for name in names:
        module, _, function = name.rpartition(".")
        if module in ("torch.distributed", "torch.distributed.distributed_c10d") and function in refused:
            return refusal(f"dist.{function}", operations)
        if package := own_answers(name):
            return refusal(package, operations)
    return None


def own_answers(name: str) -> str:
    """`course_lib.collectives` of any name in it, where the package is not among those OFFERED; empty otherwise."""
    parts = name.split(".")
    offered = len(parts) < 2 or parts[1] in OFFERED or name in (CHECK, "course_lib.grading.selfstudy")
    return "" if parts[0] != "course_lib" or offered else ".".join(parts[:2])


def refusal(name: str, operations: frozenset[str] | None) -> str:
    """Why an answer that uses `name` is no answer."""
    rest = f"write it with {' and '.join(sorted(operations, reverse=True))}" if operations else ASKED
    return f"it uses {name}: {rest}"


def full_name(node: ast.expr, aliases: dict[str, str]) -> str:
    """`dist.all_reduce` as torch.distributed.all_reduce; empty for what is no chain of up to 8 names."""
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < 8:  # of a longer one the inner part is a node itself
        names.insert(0, node.attr)
        node = node.value
    return ".".join([aliases.get(node.id, node.id), *names]) if isinstance(node, ast.Name) else ""
