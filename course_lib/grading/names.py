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
from course_lib.grading.trusted.inside.needs import NOWHERE, SHARE, bodies_of, foresee_failure, used
from course_lib.grading.trusted.inside.student_code import lost_words, own_answers, prepare
from course_lib.runtime import context

WRAPS = ("__wrapped__", "__func__", "fget", "func")  # where a decorated function has the reader's own
WRAPPERS = (staticmethod, classmethod, property, functools.partial, type(functools.cache(len)))
seconds_of: dict[str, float] = {}  # of computing, by the cell's name; "": when the last one began


def count_seconds(shell: Any) -> None:
    """Note from here on how long each cell computes."""
    shell.events.register("pre_run_cell", lambda _: seconds_of.update({"": time.process_time()}))
    shell.events.register("post_run_cell", lambda result: seconds_of.update(
        {f"<{result.execution_count}>": time.process_time() - seconds_of.get("", math.inf)}))


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
    if code.refusal:
        return []
    givers = {name: each for each in code.statements for name in each.gives()}  # the last one of each name
    bodies = bodies_of(code.statements)
    given = shell.user_ns.keys() - getattr(shell, "user_ns_hidden", {}).keys()  # without IPython's own
    names = {name for each in functions_of(function) if each.__globals__ is shell.user_ns
             for name in used(each.__code__) & given if not name.startswith("__")}
    told: dict[Any, str] = {}  # of a statement with several names, one that the function uses
    for name in sorted(givers, key=lambda name: (name in names, name)):
        each = givers[name]
        too_long = seconds_of.get(each.code.co_filename, 0.0) > SHARE * TIME_LIMIT_S
        if why := not each.own and foresee_failure(each, bodies, too_long):
            told[each] = lost_words(name, each.line, why)
    if not any(isinstance(each.node, ast.ImportFrom) and each.node.names[0].name == "*" for each in code.statements):
        nowhere = names - givers.keys() - {name for each in code.statements for name in used(each.code, "STORE_GLOBAL")}
        told |= {name: code.lost.get(name, NOWHERE.format(name)) for name in sorted(nowhere)}
    here = Path.cwd()
    for name in sorted(names):
        value = function.__globals__[name]
        module = (value.__name__ if inspect.ismodule(value) else value_module(value)).partition(".")[0]
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if module not in ("__main__", "course_lib") and Path(file).resolve().parent in (here, here / module):
            told[name] = lost_words(name, f"import {module}", f"there is no module {module}")
    return list(told.values())


def functions_of(function: Callable) -> list[Callable]:
    """`function`, and those of the reader's that it calls by name, decorated ones and methods among them."""
    found, seen, todo = [], set(), [function]
    while todo:
        each = todo.pop()
        if id(each) in seen or value_module(each).startswith(("torch", "course_lib")):
            continue
        seen.add(id(each))
        if inspect.isclass(each) and value_module(each) == "__main__":
            todo += vars(each).values()
        elif inspect.isfunction(each):
            found.append(each)
            todo += [each.__globals__[name] for name in used(each.__code__) if name in each.__globals__]
            todo += [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
        elif isinstance(each, WRAPPERS):
            todo += [getattr(each, name, None) for name in WRAPS]
    return found


def find_course_answers(function: Callable) -> set[tuple[str, str]]:
    """What `function`, and the reader's functions that it calls by name, use of the course's own: (package, name).

    Good enough for a reader who only forgot what was asked: it looks at names, and names can be hidden.
    """
    found = set()
    for each in functions_of(function):
        for name in loaded_names(each.__code__):
            first, *attributes = name.split(".")
            value = each.__globals__.get(first)
            module = name if value is None else value_module(value)
            if inspect.ismodule(value):
                module = ".".join([value.__name__, *attributes])
            if package := own_answers(module):
                found.add((package, name))
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
