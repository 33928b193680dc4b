"""What of a notebook's other cells a solution needs: read from the source here, executed in `rank`, told by `check`.

A solution cell runs whole. Of the cells around it those statements run that give a value to a name which the solution
uses, itself or by what it calls: imports, functions, classes, assignments, loops that fill a table. An experiment that
nothing depends on costs nothing, whatever it starts, prints or trains. At home `check` sends a function to its ranks
with the values of the names that it uses, and with nothing else of the notebook: so the same runs in both.
"""

import ast
import dis
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any

from course_lib.grading.on_rank import OutOfTime

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNS = (ast.Assign, ast.AnnAssign)
BINDING = (*DEFINITIONS, ast.Import, ast.ImportFrom, *ASSIGNS)
NO_RANKS, NO_FILE, NO_INPUT = "no ranks are started", "there is no file of yours and no network", "nobody is asked"
TOO_LONG = "it takes too long"
FAILS = {"launch": NO_RANKS, "start_ranks": NO_RANKS, "input": NO_INPUT, **dict.fromkeys(
    ("environ", "getenv"), "your environment variables are not set"), **dict.fromkeys(
    ("open", "read_text", "read_bytes", "read_csv", "load", "loadtxt", "urlopen", "listdir"), NO_FILE)}  # by its name
NOWHERE = "{} has its value by no line that class runs: give it its value in the solution cell"
READS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
WORDS = (*READS, "LOAD_ATTR", "LOAD_METHOD")
FEW = 200  # nobody writes more, and reading a notebook must not take long
SHARE, SHARE_OF_DOUBTFUL = 1 / 2, 1 / 16  # of a trial's time: what a statement of another cell may compute
COMPUTES = sys.stdlib_module_names | {"numpy", "torch"}  # which an experiment may call without harm


@dataclass(eq=False)
class Statement:
    """One at the outermost level of a cell. own: of the exercise's own solution cell. node: None on a rank."""

    node: ast.stmt | None
    code: CodeType
    own: bool
    line: str  # its first one
    is_sure: bool = True  # False for what may be an experiment, and gets less time
    given: tuple[str, ...] = ()  # the names that have a value by it
    why: str = ""  # why it can give nothing in class, as far as words in it say

    def parts(self) -> tuple:
        """All but the node, which another process has no use for."""
        return self.code, self.own, self.line, self.is_sure, self.given, self.why

    def run(self, namespace: dict[str, Any]) -> None:
        """Execute it, where it awaits something to the end of that: without an event loop, which needs sockets."""
        waiting = eval(self.code, namespace)
        if inspect.iscoroutine(waiting):
            with suppress(StopIteration):
                while True:
                    waiting.send(None)

    def gives(self) -> set[str]:
        """The names that have a value by it, or another value."""
        return set(changes(self.node))


class Needs:
    """Which of a notebook's statements run where the function called `asked` is wanted."""

    def __init__(self, statements: list[Statement], asked: str) -> None:
        self.statements = statements
        self.modules = {name: module for each in statements for name, module in imports_of(each.node)}
        self.givers: dict[str, list[int]] = defaultdict(list)
        for place, each in enumerate(statements):
            for name in each.gives() | (set(fills_by_method(each.node)) - self.modules.keys()):
                self.givers[name].append(place)  # torch.manual_seed(0): at home no rank hears of it
        self.bodies = bodies_of(statements)
        self.settled = self.settle()
        self.names: set[str] = set()  # that are needed
        self.chosen: set[int] = set()
        self.need({asked})
        for place, each in enumerate(statements):
            if each.own or self.runs_anyway(each.node):
                self.choose(place)
        for place in self.fillers():
            statements[place].is_sure = False
            self.choose(place)

    def select(self) -> list[Statement]:
        """Those that run, in the order of the notebook."""
        return [self.statements[place] for place in sorted(self.chosen)]

    def settle(self) -> dict[str, int]:
        """Names that the own cell itself gives a value before it reads them, and where: what is above is not needed."""
        settled: dict[str, int] = {}
        read: set[str] = set()
        for place, each in enumerate(self.statements):
            if each.own:
                read |= used(each.code, inside=False) - settled.keys()
                settled |= dict.fromkeys(used(each.code, "STORE_NAME", inside=False), place) if isinstance(
                    each.node, BINDING) else {}
        return {name: place for name, place in settled.items() if name not in read}

    def choose(self, place: int) -> None:
        """Run this statement, and what it needs."""
        self.chosen.add(place)
        self.need(used(self.statements[place].code))

    def need(self, names: set[str]) -> None:
        """Run what gives these names a value, and what that needs."""
        todo: list[set[str] | frozenset[str]] = [names]
        while todo:
            new = todo.pop() - self.names
            self.names |= new
            for name in new:
                for place in self.givers.get(name, ()):
                    if place not in self.chosen and place > self.settled.get(name, -1):
                        self.chosen.add(place)
                        todo.append(used(self.statements[place].code))

    def runs_anyway(self, node: ast.stmt) -> bool:
        """Whether names do not tell what it gives: `from x import *`, or the notebook's own decorator or base class."""
        if isinstance(node, ast.ImportFrom):
            return node.module == "__future__" or node.names[0].name == "*"
        return any(root(each) in self.givers and root(each) not in self.modules
                   for each in (*getattr(node, "decorator_list", ()), *getattr(node, "bases", ())))

    def fillers(self) -> Iterator[int]:
        """Statements that may change a needed value by a call: fill(TABLE), last = TABLE.pop(), setup().

        Nothing that starts ranks, sends, or needs another library: that is an experiment. A few of many are looked at.
        """
        changed = {each.node.name: {name for inner in each.node.body for name in changes(inner)}
                   for each in self.statements if isinstance(each.node, DEFINITIONS[:2])}
        callers = []
        for place, each in enumerate(self.statements):
            parts = list(at_once(each.node))
            callees = {part.func.id for part in parts if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)}
            if any(isinstance(part, ast.Call) for part in parts):
                named = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
                named &= self.givers.keys()
                callers.append((place, named.union(*(changed.get(name, ()) for name in callees))))
        left = FEW
        for place, touched in callers * 3:  # what one of them needs may be filled above it
            if left and place not in self.chosen and any(map(self.is_value, touched & self.names)):
                left -= 1
                if self.only_computes(self.statements[place]):
                    yield place

    def is_value(self, name: str) -> bool:
        """Whether a name stands for something that a call may change: no function, class or module."""
        nodes = [self.statements[place].node for place in self.givers.get(name, ())]
        return not nodes or any(isinstance(node, ASSIGNS) or not isinstance(node, BINDING) for node in nodes)

    def only_computes(self, statement: Statement) -> bool:
        """Whether all that it calls is the notebook's own, Python's or torch's, and neither sends nor is a solution."""
        names = reach(statement.code, self.bodies)
        modules = [self.modules[name] for name in names if name in self.modules]
        return (all(module.split(".")[0] in COMPUTES and not module.startswith("torch.distributed")
                    for module in modules)
                and not any(self.statements[place].own for name in names for place in self.givers.get(name, ())))


def bodies_of(statements: list[Statement]) -> dict[str, list[frozenset[str]]]:
    """The words in the functions and classes of each name."""
    found: dict[str, list[frozenset[str]]] = defaultdict(list)
    for each in statements:
        if isinstance(each.node, DEFINITIONS):
            found[each.node.name].append(used(each.code, *WORDS))
    return found


def reach(code: CodeType, bodies: dict[str, list[frozenset[str]]]) -> set[str]:
    """The words in `code` and in what of the notebook it calls, directly or not; a few of many."""
    words, new = set(), used(code, *WORDS)
    for _ in range(FEW):
        words |= new
        new = frozenset().union(*(body for name in new for body in bodies.get(name, ()))) - words
        if not new:
            break
    return words


def used(code: CodeType, *ways: str, inside: bool = True) -> frozenset[str]:
    """The names of the notebook that `code` reads, or meets in these `ways`; inside: in functions, too."""
    found, todo = set(), [code]
    while todo:
        each = todo.pop()
        found |= {step.argval for step in dis.get_instructions(each) if step.opname in (ways or READS)}
        todo += [constant for constant in each.co_consts if isinstance(constant, CodeType)] * inside
    return frozenset(found)


def changes(node: ast.stmt) -> Iterator[str]:
    """Each name to which `node` gives a value, or whose value it changes by an index or an attribute."""
    for each in at_once(node):
        match each:
            case ast.Name(ctx=ast.Store() | ast.Del(), id=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case ast.AST(name=str(name)) | ast.MatchMapping(rest=str(name)):  # def, class, a pattern
                yield name
            case ast.Subscript(ast.Call(ast.Name("globals")), ast.Constant(str(name)), ast.Store()):
                yield name
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                yield root(each)


def fills_by_method(node: ast.stmt) -> Iterator[str]:
    """The names in the place of TABLE in statements such as `TABLE.append(3)`."""
    for each in at_once(node):
        if isinstance(each, ast.Expr) and isinstance(call := each.value, ast.Call) and isinstance(
                call.func, ast.Attribute):
            yield root(call)


def imports_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """(name, what it stands for) of each import in `node`."""
    for each in at_once(node):
        if isinstance(each, ast.Import):
            yield from ((alias.asname or alias.name.partition(".")[0], alias.name) for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{each.module}.{alias.name}") for alias in each.names)


def at_once(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what in it is executed with it: no bodies of functions, and no names of a comprehension's own."""
    todo = [node]
    while todo:
        each = todo.pop()
        yield each
        if isinstance(each, DEFINITIONS):
            todo += each.decorator_list
        elif isinstance(each, ast.comprehension):
            todo += [each.iter, *each.ifs]
        elif not isinstance(each, ast.Lambda):
            todo += ast.iter_child_nodes(each)


def root(node: ast.expr) -> str:
    """The name that `TABLE[k].rows.append` begins with; empty where that is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def foresee_failure(statement: Statement, bodies: dict[str, list[frozenset[str]]], too_long: bool = False) -> str:
    """Why a statement can give nothing in class, as far as words in it and in what it calls say; or ""."""
    if isinstance(statement.node, (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Try)):
        return ""
    words = reach(statement.code, bodies)
    return next((FAILS[word] for word in FAILS if word in words), TOO_LONG * too_long)


def explain_failure(error: BaseException) -> str:
    """Why a statement of another cell gave nothing in class, where its words do not say it: a sentence's end."""
    if isinstance(error, ModuleNotFoundError):
        return f"there is no module {error.name}"
    return TOO_LONG if isinstance(error, OutOfTime) else f"it raises {type(error).__name__}: {error}"
