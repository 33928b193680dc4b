"""What a cell of a notebook needs: ranks, which may have a GPU each, and the names of cells above it."""

import ast
import symtable

RANKS_MAGIC = "%%ranks"
TEAM = "team"  # what notebooks call the ranks that stay


def launches(source: str) -> bool:
    """Whether a cell starts ranks that may have a GPU (with device="cpu" they have none, on any machine), or uses a
    team of them. A cell that is no plain Python (a magic) does neither, but for %%ranks.
    """
    if source.startswith(RANKS_MAGIC):
        return True
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "launch"]
    return (any(getattr(node, "id", "") == TEAM for node in nodes)
            or any("device='cpu'" not in map(ast.unparse, call.keywords) for call in calls))


def loaded(node: ast.AST) -> set[str]:
    """Names of the notebook that are read, also inside functions: by Python's own account of names."""
    def look(table: symtable.SymbolTable, top: bool) -> set[str]:
        own = {symbol.get_name() for symbol in table.get_symbols()
               if (symbol.is_referenced() if top else symbol.is_global())}
        return own.union(*(look(child, False) for child in table.get_children()))

    return look(symtable.symtable(ast.unparse(node), "cell", "exec"), True)
