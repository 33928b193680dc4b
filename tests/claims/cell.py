"""The headlines of a cell, `Chart(..., holds=...)` and the like, and the names that they are computed from."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from tools.harness.needs import loaded

DOES_NOT_HOLD = "does not hold here"  # a headline's fault where its own data contradict it
PICTURES = ("Chart", "MemoryPanels", "RankPanels")  # take a headline and `holds`; a timeline by .shows(...)
SCOPES = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Headline:
    """The call that draws it, and the statements of the cell that stand before it."""

    call: ast.Call
    before: list[ast.stmt]
    in_the_open: bool  # evaluated once, with the notebook's own names: in no function, loop or comprehension

    @property
    def drawn(self) -> ast.Call:
        """The call without its condition."""
        return ast.Call(self.call.func, self.call.args, [each for each in self.call.keywords if each.arg != "holds"])

    @property
    def holds(self) -> ast.expr | None:
        return next((keyword.value for keyword in self.call.keywords if keyword.arg == "holds"), None)


def headlines(source: str) -> list[Headline]:
    """In the order of the cell; none of a cell that is no plain Python."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return []
    return [Headline(call, statements[:number], in_the_open)
            for number, statement in enumerate(statements)
            for call, in_the_open in calls(statement, isinstance(statement, (ast.Expr, ast.Assign)))]


def calls(node: ast.AST, in_the_open: bool) -> Iterator[tuple[ast.Call, bool]]:
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in PICTURES or name == "shows" and isinstance(node.func, ast.Attribute):
            yield node, in_the_open
    for child in ast.iter_child_nodes(node):
        yield from calls(child, in_the_open and not isinstance(node, SCOPES))


def names_of(expression: ast.AST, before: list[ast.stmt], namespace: dict[str, Any]) -> set[str]:
    """What it is computed from: names in it, in assignments before it, in the notebook's functions."""
    names = loaded(expression)
    for statement in reversed(before):
        if targets(statement) & names:
            names |= loaded(statement)
    return with_those_of_functions(names, namespace) & namespace.keys()


def with_those_of_functions(names: set[str], namespace: dict[str, Any]) -> set[str]:
    """`names`, and the global names that functions of the notebook among them use, and so on."""
    asked, known = list(names), set()
    while asked:
        name = asked.pop()
        known.add(name)
        code = getattr(namespace.get(name), "__code__", None)
        if code and namespace[name].__module__ == "__main__":
            asked += global_names(code) - known
    return known


def targets(statement: ast.stmt) -> set[str]:
    """Names that a plain assignment gives; empty for any other statement, and for x[0] = 1, which changes x."""
    given = statement.targets if isinstance(statement, ast.Assign) else []
    names = [node for target in given for node in ast.walk(target) if isinstance(getattr(node, "ctx", None), ast.Store)]
    return {node.id for node in names if isinstance(node, ast.Name)} if not any(
        isinstance(node, (ast.Subscript, ast.Attribute)) for node in names) else set()


def global_names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(global_names, inner))


def launches(node: ast.AST, namespace: dict[str, Any]) -> bool:
    """Whether it starts ranks, itself or by a function of the notebook: too slow, and too real, to do again."""
    return "launch" in with_those_of_functions(loaded(node), namespace)
