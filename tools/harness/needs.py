"""Which cells of a notebook have to run so that those that launch can: the rest is pictures, widgets and tables."""

import ast
import symtable
from collections.abc import Callable

RANKS_MAGIC = "%%ranks"
TEAM = "team"  # what notebooks call the ranks that stay


def nodes_of(source: str) -> list[ast.AST]:
    """Of a cell; none of one that is no plain Python."""
    try:
        return list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return []


def launches(source: str) -> bool:
    """Whether a cell starts ranks that may have a GPU (with device="cpu" they have none, on any machine), or uses a
    team of them.
    """
    calls = [node for node in nodes_of(source) if isinstance(node, ast.Call)]
    return uses_team(source) or any(
        getattr(call.func, "id", "") == "launch" and "device='cpu'" not in map(ast.unparse, call.keywords)
        for call in calls)


def uses_team(source: str) -> bool:
    """Whether a cell runs in ranks that stay, or asks them for something."""
    return source.startswith(RANKS_MAGIC) or any(getattr(node, "id", "") == TEAM for node in nodes_of(source))


def kept(sources: list[str], purpose: Callable[[str], bool] = launches) -> list[bool]:
    """For each cell, given as code in the order of the notebook: whether it has the purpose, or one that does needs it.

    A cell is needed for a name that it gives, or whose value it may change. A cell of %%ranks gives the notebook
    nothing, and may need what it mentions. Another one that is no plain Python (a magic) is kept, and so is, now and
    then, one too many.
    """
    wanted: set[str] = set()
    keeps = []
    for source in reversed(sources):
        in_ranks = source.startswith(RANKS_MAGIC)
        try:
            statements = ast.parse(source.partition("\n")[2] if in_ranks else source).body
        except SyntaxError:
            keeps.append(True)
            continue
        given, asked, changed = set(), set(), set()
        for statement in statements:
            asked |= loaded(statement) - given
            if not in_ranks:
                given |= stored(statement)
                changed |= changed_by(statement)
        keep = purpose(source) or bool((given | changed) & wanted)
        if keep:
            wanted = (wanted - given) | asked
        keeps.append(keep)
    return keeps[::-1]


def table_of(node: ast.AST) -> symtable.SymbolTable:
    """Python's own account of its names."""
    return symtable.symtable(ast.unparse(node), "cell", "exec")


def loaded(node: ast.AST) -> set[str]:
    """Names of the notebook that are read, also inside functions."""
    def look(table: symtable.SymbolTable, top: bool) -> set[str]:
        own = {symbol.get_name() for symbol in table.get_symbols()
               if (symbol.is_referenced() if top else symbol.is_global())}
        return own.union(*(look(child, False) for child in table.get_children()))

    return look(table_of(node), True)


def stored(node: ast.AST) -> set[str]:
    """Names that are bound in the notebook: assigned, imported, defined."""
    return {symbol.get_name() for symbol in table_of(node).get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}


def changed_by(statement: ast.stmt) -> set[str]:
    """x, for x.y = 1, x[0] = 1 and x.append(1), not in a function; what draws (plt.plot(...)) changes nothing for
    others.
    """
    found = set()
    for node in [] if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ast.walk(statement):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            node = node.value.func
        elif not isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        inner = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        if inner is not node and isinstance(inner, ast.Name):
            found.add(inner.id)
    return found - {"plt"}
