"""Which cells of a notebook have to run so that those that launch can: the rest is pictures, widgets and tables."""

import ast
import symtable
from collections.abc import Callable

RANKS_MAGIC = "%%ranks"
TEAM = "team"  # what notebooks call the ranks that stay


def launches(source: str) -> bool:
    """Whether a cell starts ranks that may have a GPU (with device="cpu" they have none, on any machine), or uses a
    team of them.
    """
    if uses_team(source):
        return True
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return "launch(" in source
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return any(
        isinstance(call.func, ast.Name) and call.func.id == "launch" and not any(
            word.arg == "device" and ast.unparse(word.value) == "'cpu'" for word in call.keywords) for call in calls)


def uses_team(source: str) -> bool:
    """Whether a cell runs in ranks that stay, or asks them for something."""
    if source.startswith(RANKS_MAGIC):
        return True
    try:
        return any(isinstance(node, ast.Name) and node.id == TEAM for node in ast.walk(ast.parse(source)))
    except SyntaxError:
        return False


def kept(sources: list[str], purpose: Callable[[str], bool] = launches) -> list[bool]:
    """For each cell, given as code in the order of the notebook: whether it has the purpose, or one that does needs it.

    A cell is needed for a name that it gives, or whose value it may change. A cell of %%ranks gives the notebook
    nothing, and may need what it mentions. Another one that is no plain Python (a magic) is kept.
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
        given, asked, changed = names_of(statements)
        if in_ranks:
            given, changed = set(), set()
        keep = purpose(source) or bool((given | changed) & wanted)
        if keep:
            wanted = (wanted - given) | asked
        keeps.append(keep)
    return keeps[::-1]


def names_of(statements: list[ast.stmt]) -> tuple[set[str], set[str], set[str]]:
    """What statements of a cell give; what they need and do not give before; what they may change: x.y = 1, x.add(1).
    """
    given, asked, changed = set(), set(), set()
    for statement in statements:
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With | ast.Try):
            headers, body = parts_of(statement)
            asked |= loaded(headers) - given
            given |= stored(headers)
            inner = names_of(body)
            asked |= inner[1] - given
            given |= inner[0]
            changed |= inner[2]
            continue
        asked |= loaded([statement]) - given
        given |= stored([statement])
        changed |= changed_by(statement)
    return given, asked, changed


def parts_of(statement: ast.stmt) -> tuple[list[ast.AST], list[ast.stmt]]:
    """What stands at the head of a compound statement, and what is inside."""
    body, headers = [], []
    for part in ast.iter_child_nodes(statement):
        (body if isinstance(part, ast.stmt) else headers).append(part)
        if isinstance(part, ast.ExceptHandler):
            body += part.body
    return headers, body


def table_of(parts: list[ast.AST]) -> symtable.SymbolTable:
    """Python's own account of the names in `parts`."""
    text = "\n".join(f"for {ast.unparse(part)} in (): pass" if is_target(part) else
                     f"with {ast.unparse(part)}: pass" if isinstance(part, ast.withitem) else
                     ast.unparse(part) for part in parts if not isinstance(part, ast.ExceptHandler))
    return symtable.symtable(text, "cell", "exec")


def is_target(part: ast.AST) -> bool:
    return isinstance(getattr(part, "ctx", None), ast.Store)


def loaded(parts: list[ast.AST]) -> set[str]:
    """Names of the notebook that are read, also inside functions."""
    def look(table: symtable.SymbolTable, top: bool) -> set[str]:
        own = {symbol.get_name() for symbol in table.get_symbols()
               if (symbol.is_referenced() if top else symbol.is_global())}
        return own.union(*(look(child, False) for child in table.get_children()))

    return look(table_of(parts), True)


def stored(parts: list[ast.AST]) -> set[str]:
    """Names that are bound in the notebook: assigned, imported, defined."""
    return {symbol.get_name() for symbol in table_of(parts).get_symbols()
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()}


def changed_by(statement: ast.stmt) -> set[str]:
    """x, for x.y = 1, x[0] = 1 and x.append(1); what draws (plt.plot(...)) changes nothing for others."""
    targets = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        targets = [statement.value.func]
    return {base_of(each) for each in targets if isinstance(each, ast.Attribute | ast.Subscript)} - {"", "plt"}


def base_of(node: ast.expr) -> str:
    """x, for x.y[0].z; empty where there is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
