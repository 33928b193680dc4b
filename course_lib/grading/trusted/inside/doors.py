"""What a rank refuses to student code inside its own process, and what it tells the teacher of.

A library has many doors to one collective: `dist.all_reduce`, the functional collectives and DTensor, `torch.ops`, the
C++ reducer of DDP, a process group's methods, a backend's own. All but the last end in one operator of torch's
dispatcher, so this is where they are refused, for every device; and a backend's methods are replaced in their class.
Which operators and methods are what operation is in runtime/operations.py.

Student code runs in the same process, so all of this can be undone by whoever writes into its memory, and the words
for the teacher be forged. What is counted and limited outside of the process cannot.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

import torch.distributed as dist

from course_lib.grading.trusted.inside.student_code import OURS, refusal
from course_lib.runtime.operations import POINT_TO_POINT, find_operation, name_of_method
from course_lib.runtime.torch_private import (
    Backend,
    ControlCollectives,
    list_operators,
    refuse_new_groups,
    replace_kernels,
)

NO_NEW_GROUP = "no new process group can be made here: send and receive reach any rank, alone and in batches"
COURSE = os.path.dirname(sys.modules["course_lib"].__file__)
# What Python says that it does (PEP 578); the first argument is a file, a program or a library, or says nothing.
READS = {"open", "os.listdir", "os.scandir"}
FILES = READS | {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate"}
AUDITED = FILES | {"os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "subprocess.Popen", "socket.__new__",
                   "gc.get_objects", "gc.get_referrers"}
NO_MEMORY = "it reaches into the process's memory by ctypes ({}), which an answer may not"


class Refused(RuntimeError):
    """A library's collective was called where the exercise asks for one, or memory reached where no answer has to."""


def forbid(operations: frozenset[str] | None, tell: Callable[[str], None] = lambda what: None) -> None:
    """From here on, all collectives raise Refused but `operations` (None: no collective does), and stores always: what
    goes over a store is not counted. Without the course's own answers where some are refused. `tell` hears of each try.
    """
    def make_refusing(name: str, why: str = "") -> Callable:
        def refuse(*_: Any, **__: Any) -> None:
            tell(f"called {name}")
            raise Refused(f"it uses {name}: {why}" if why else refusal(name, operations))
        return refuse

    for owner in (dist.Store, ControlCollectives):
        for method in [name for name, value in vars(owner).items() if callable(value) and not name.startswith("_")]:
            setattr(owner, method, make_refusing(f"dist.{owner.__name__}.{method}", "what it sends is not counted"))
    if operations is None:
        return
    kernels = {}
    for operator in list_operators("c10d"):
        name, row = operator._schema.name, find_operation(operator._schema.name)
        sends = any(argument.name == "process_group" for argument in operator._schema.arguments)
        if sends and (row is None or row.name not in operations.union(POINT_TO_POINT)):
            kernels[operator] = make_refusing(f"dist.{row.name}, by {name}" if row else name)
    replace_kernels(kernels)
    for method in list(vars(Backend)):
        if (operation := name_of_method(method)) and operation not in operations.union(POINT_TO_POINT):
            setattr(Backend, method, make_refusing(f"dist.{operation}, by Backend.{method}"))
    for name in [OURS, *(name for name in sys.modules if name.startswith(f"{OURS}."))]:
        sys.modules[name] = None  # which makes an import fail, by whatever name it is written


def no_new_groups() -> AbstractContextManager[None]:
    """A context in which making a new process group raises: over its connections data could go around the counters."""
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(NO_NEW_GROUP)
    return refuse_new_groups(refuse)


def audit(cells: frozenset[str], tell: Callable[[str], None]) -> None:
    """`tell` what code of these `cells` does outside of its task from here on, itself or by a library that it calls.

    Not what a library does while it is imported, nor what it reads of its own files. What ctypes reports of itself,
    libraries and memory, raises Refused whoever asks. There is no way to take this hook out, and there are ways around.
    """
    own, *theirs = map(os.path.realpath, (os.getcwd(), sys.prefix, sys.base_prefix, COURSE, "/usr", "/sys", "/dev"))

    def hook(event: str, arguments: tuple) -> None:
        if event.startswith("ctypes."):
            with suppress(Exception):
                tell(f"{event} {arguments}")
            raise Refused(NO_MEMORY.format(event))
        with suppress(Exception):  # which would end what the hook is asked about
            what = words_of(event, arguments, own, theirs) if event in AUDITED else ""
            if what and is_of(cells, sys._getframe(1)):
                tell(what)

    sys.addaudithook(hook)


def words_of(event: str, arguments: tuple, own: str, theirs: list[str]) -> str:
    """An event in words; "" for a file in the folder `own`, and for reading what is in `theirs`."""
    name = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes) else ""
    if event not in FILES:
        return f"{event} {name}".strip()
    path = os.path.realpath(name) if name else own  # a number: of a file that is open
    writes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)) if event == "open" else event not in READS
    inside = any(f"{path}/".startswith(f"{folder}/") for folder in (own, *(() if writes else theirs)))
    return "" if inside else f"{'write' if writes and event == 'open' else event} {name}"


def is_of(cells: frozenset[str], frame: FrameType | None) -> bool:
    """Whether code of these cells runs in this frame or called it, other than by an import or what the course has."""
    while frame is not None and not frame.f_code.co_filename.startswith(("<frozen importlib", COURSE)):
        if frame.f_code.co_filename in cells:
            return True
        frame = frame.f_back
    return False
