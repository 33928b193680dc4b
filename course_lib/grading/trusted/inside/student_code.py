"""What of a student's notebook is executed, and the names that it must not use. Read here, executed in `ranks`.

The rule, which TEACHING.md repeats for teachers. From every code cell above the check cell: imports, functions,
classes, and assignments of plain values. From the solution cell itself: all statements. One by one, in the order of
the notebook; a statement that fails is passed over. Magics and shell commands are left out.
"""

import __future__

import ast
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from course_lib.runtime.operations import list_collectives

ASKED = "that is what you are asked to write"
MAX_SOURCE = 1 << 20  # characters of all cells together
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
PLAIN = (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Name, ast.Attribute,
         ast.Lambda, ast.expr_context, ast.operator, ast.unaryop)
FUTURES = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
HARMLESS_CELL_MAGICS = {"%%time", "%%timeit", "%%capture", "%%prun"}

FUNCTIONS_OF = list_collectives()  # by which a reader could reach each of them
OURS = "course_lib.collectives"  # refused also where the name is hidden, as the library's collectives are
OFFERED = ("runtime", "reference", "pictures", "facts")  # of course_lib; the rest is what exercises ask for
CHECK = "course_lib.grading.check"  # which every notebook imports


@dataclass
class Code:
    """Statements ready to be executed, and why this run need not begin at all."""

    statements: list[CodeType] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # file name in tracebacks -> the cell's text
    refusal: str | None = None


def prepare(cells: list[dict[str, Any]], operations: frozenset[str] | None) -> Code:
    """The code of `cells` (source, name, own: whether it is the exercise's own solution cell)."""
    code = Code()
    if sum(len(cell["source"]) for cell in cells) > MAX_SOURCE:
        code.refusal = f"the cells hold more than {MAX_SOURCE:,} characters"
        return code
    flags = 0
    for cell in cells:
        try:
            tree = parse(cell["source"])
            if cell["own"]:
                code.refusal = code.refusal or library_call(tree, operations)
            for node in tree.body:
                if not (cell["own"] or defines(node)) or uses_ipython(node):
                    continue
                statement = compile(ast.Module([node], []), f"<{cell['name']}>", "exec", flags, dont_inherit=True)
                flags |= statement.co_flags & FUTURES
                code.statements.append(statement)
        # ValueError: null characters; what is nested too deeply for a parser, or for IPython's, is one of the others
        except (SyntaxError, ValueError, RuntimeError, MemoryError) as error:
            if cell["own"]:
                code.refusal = code.refusal or does_not_parse(cell["name"], error)
        code.sources[f"<{cell['name']}>"] = cell["source"]
    return code


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
        return ast.parse(TransformerManager().transform_cell(source))


def does_not_parse(name: str, error: Exception) -> str:
    """The sentence for a cell that is no Python, with the line."""
    line = f" (line {error.lineno}: {(error.text or '').strip()[:200]})" if getattr(error, "lineno", None) else ""
    said = getattr(error, "msg", error) if str(error) else "it is nested too deeply"
    return f"{name} does not parse: {said}{line}"


def defines(node: ast.stmt) -> bool:
    """Whether the statement only gives names to things."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        if node.value is None:
            return False
        return isinstance(node.value, ast.Lambda) or all(isinstance(part, PLAIN) for part in ast.walk(node.value))
    return isinstance(node, DEFINITIONS)


def uses_ipython(node: ast.stmt) -> bool:
    """Whether a statement that is no definition is a magic or a shell command."""
    return not isinstance(node, DEFINITIONS) and any(
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
