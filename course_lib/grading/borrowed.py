"""What of the course's own answers a reader's function uses, by name.

Good enough for a reader who only forgot what was asked: it looks at names, and names can be hidden.
"""

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from course_lib.grading.trusted.inside.student_code import own_answers


def find_course_answers(function: Callable, seen: set[Callable]) -> set[tuple[str, str]]:
    """What `function`, and the reader's functions that it calls by name, use of the course's own: (package, name)."""
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
