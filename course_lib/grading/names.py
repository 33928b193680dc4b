"""The names that a reader's function uses: which are the course's own answers, and which have no value in class.

Where `check` is asked in a notebook, the cells that were run are known. The class grader's own reading of them says
what it would run (needs.py), so that whoever relies on more hears it before handing in, in the words of class.
"""

import ast
import dis
import functools
import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, CodeType
from typing import Any

from course_lib.grading.exercise import TIME_LIMIT_S
from course_lib.grading.trusted.inside.needs import DEFINITIONS, FAILS, NOWHERE, SHARE, TOO_LONG, Statement, used
from course_lib.grading.trusted.inside.student_code import Code, lost_words, own_answers, prepare
from course_lib.runtime import context

WRAPS = ("__wrapped__", "__func__", "fget", "func")  # where a decorated function has the reader's own
WRAPPERS = (staticmethod, classmethod, property, functools.partial, type(functools.cache(len)))


seconds_of: dict[int, float] = {}  # of computing, by the number of a notebook's cell; 0: when the last one began


def count_seconds(shell: Any) -> None:
    """Note from here on how long each cell computes."""
    shell.events.register("pre_run_cell", lambda _: seconds_of.update({0: time.process_time()}))
    shell.events.register("post_run_cell", lambda result: seconds_of.update(
        {result.execution_count or -1: time.process_time() - seconds_of.get(0, math.inf)}))


if context.ipython_shell() is not None:
    count_seconds(context.ipython_shell())


def tell_what_class_lacks(function: Callable) -> list[str]:
    """A sentence for each name of the notebook that `function` uses and a class's grader would not find."""
    shell = context.ipython_shell()
    if shell is None or function.__globals__ is not shell.user_ns:
        return []
    ran = list(enumerate(shell.history_manager.input_hist_raw))[1:]
    own = max((number for number, source in ran if re.search(rf"\bdef {function.__name__}\b", source)), default=None)
    code = prepare([{"source": source, "name": number, "own": number == own} for number, source in ran],
                   None, function.__name__)
    givers = {name: each for each in code.statements for name in each.gives()}  # the last one of each name
    names = names_of(function)
    told: dict[Any, str] = {}  # of a statement with several names, one that the function uses
    for name in sorted(givers, key=lambda name: (name in names, name)):
        if why := foresee_failure(code, givers[name], givers):
            told[givers[name]] = lost_words(name, code.line_of(givers[name]), why)
    if not any(isinstance(each.node, ast.ImportFrom) and each.node.names[0].name == "*" for each in code.statements):
        nowhere = names - givers.keys() - {name for each in code.statements for name in used(each.code, "STORE_GLOBAL")}
        told |= {name: code.lost.get(name, NOWHERE.format(name)) for name in sorted(nowhere)}
    for name in sorted(names):
        value = function.__globals__[name]
        module = (value.__name__ if inspect.ismodule(value) else value_module(value)).partition(".")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and module != "__main__" and Path(file).resolve().parent in (Path.cwd(), Path.cwd() / module):
            told[name] = lost_words(name, f"import {module}", f"there is no module {module}")
    return list(told.values())


def foresee_failure(code: Code, statement: Statement, givers: dict[str, Statement]) -> str:
    """Why a statement of another cell will give nothing in class, as far as its words and its time say; else ""."""
    if statement.own or isinstance(statement.node, (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Try)):
        return ""
    words, seen, todo = set(), set(), [statement.code]
    while todo:
        each = todo.pop()
        new = used(each) - seen
        seen |= new
        words |= new | set(each.co_names)
        todo += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        todo += [givers[name].code for name in new & givers.keys() if isinstance(givers[name].node, DEFINITIONS)]
    number = int(statement.code.co_filename.strip("<>"))
    too_long = seconds_of.get(number, 0.0) > SHARE * TIME_LIMIT_S
    return next((FAILS[word] for word in FAILS if word in words), TOO_LONG * too_long)


def names_of(function: Callable) -> set[str]:
    """The notebook's names that `function` uses, itself or by functions and classes of the notebook."""
    space, found, seen, todo = function.__globals__, set(), set(), [function]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if inspect.isclass(each) and value_module(each) == "__main__":
            todo += vars(each).values()
        elif inspect.isfunction(each) and each.__globals__ is space:
            new = {name for name in used(each.__code__) if name in space and not name.startswith("__")} - found
            found |= new
            todo += [space[name] for name in new]
            todo += [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
        else:
            todo += [getattr(each, name) for name in WRAPS if isinstance(each, WRAPPERS)
                     and inspect.isfunction(getattr(each, name, None))]
    return found


def find_course_answers(function: Callable, seen: set[Callable]) -> set[tuple[str, str]]:
    """What `function`, and the reader's functions that it calls by name, use of the course's own: (package, name).

    Good enough for a reader who only forgot what was asked: it looks at names, and names can be hidden.
    """
    seen.add(function)
    found = set()
    for name in loaded_names(function.__code__):
        first, *attributes = name.split(".")
        value = function.__globals__.get(first)
        module = name if value is None else value_module(value)
        if inspect.ismodule(value):
            module = ".".join([value.__name__, *attributes])
        if package := own_answers(module):
            found.add((package, name))
        elif inspect.isfunction(value) and value not in seen and not module.startswith(("torch", "course_lib")):
            found |= find_course_answers(value, seen)
    return found


def loaded_names(code: CodeType) -> Iterator[str]:
    """The globals that `code` reads, with the attributes that follow (dist.get_rank), and what it imports."""
    imported = chain = ""
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain += f".{instruction.argval}"
            continue
        if chain:
            yield chain
        is_ours = instruction.opname.startswith("LOAD_FAST") and instruction.argval == "course_lib"  # imported inside
        chain = instruction.argval if instruction.opname == "LOAD_GLOBAL" or is_ours else ""
        if instruction.opname == "IMPORT_NAME":
            imported = instruction.argval
            yield imported
        if instruction.opname == "IMPORT_FROM" and imported == "course_lib":
            yield f"{imported}.{instruction.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from loaded_names(constant)


def value_module(value: Any) -> str:
    """Where `value` was defined, empty for what does not say."""
    return str(getattr(value, "__module__", ""))
