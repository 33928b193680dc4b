"""Stack frames and tracebacks as data: where in the reader's code a rank is, told as `cell In[7], line 3`.

And the tensors that a failing line names, with their shapes, dtypes and devices as text: most bugs of distributed code
are one of the three.
"""

import dis
import linecache
import os
import re
import sysconfig
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime import context

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_GRADERS = re.compile(r"[/\\]\d\d_\w+[/\\](?:on_rank|judge\w*)\.py$")  # of an exercise, beside its solution
_DUMPED = re.compile(r'File "(.*)", line (\d+) in (.*)')
_RUNTIME = os.path.join("course_lib", "runtime")
_COMMUNICATION = (os.path.join("torch", "distributed"), os.path.join(_RUNTIME, "instruments", "pending"),
                  os.path.join(_RUNTIME, "staging"))
_COLLECTIVES = os.path.join("course_lib", "collectives"), os.path.join("course_lib", "groups")

_SHOWN = 8  # of the reader's frames: so many of the outermost, and of the innermost
_MAX_TENSORS = 8
_MAX_IN_A_LIST = 4
_MAX_VALUES = 6  # a tensor with no more numbers is shown whole
_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF"}


@dataclass(frozen=True)
class Frame:
    """One line of a stack, as plain data that can cross a process boundary."""

    file: str
    line: int
    function: str
    instruction: int = -1

    @property
    def is_readers(self) -> bool:
        """Whether the reader wrote this line: neither the course, nor torch, nor any installed library."""
        if self.file.startswith("<"):
            return not self.file.startswith("<frozen")
        return not (self.file.startswith((_PACKAGE, *_LIBRARIES)) or "site-packages" in self.file
                    or _GRADERS.search(self.file))

    @property
    def is_communication(self) -> bool:
        """Whether the frame is of the code that sends and receives, and not of whoever calls it."""
        return any(part in self.file for part in _COMMUNICATION)

    @property
    def is_in_collective(self) -> bool:
        """Also in the course's own: a backend that aborts in a thread of its own finds the rank just beside torch's."""
        return self.is_communication or any(part in self.file for part in _COLLECTIVES)

    def where(self) -> str:
        """`cell In[7], line 3`, or `train.py, line 3`; for the notebook's process, which knows its cells."""
        cell = _cells().get(self.file)
        return f"{_short(self.file) if cell is None else f'cell In[{cell}]'}, line {self.line}"

    def code(self) -> str:
        """The line itself; empty where the source is not at hand."""
        return linecache.getline(self.file, self.line).strip()


def name_cells(text: str) -> str:
    """`text` with In[2] in place of the file names that IPython gives to cells."""
    for file, number in _cells().items():
        text = text.replace(file, f"In[{number}]")
    return text


def _cells() -> dict[str, int]:
    """File name -> execution count of the cells of this notebook."""
    shell = context.ipython_shell()
    return {} if shell is None else getattr(shell.compile, "_filename_map", {})


def _short(file: str) -> str:
    path = Path(file)
    site_packages = [parent for parent in path.parents if parent.name == "site-packages"]
    for root in (Path(_PACKAGE).parent, *map(Path, _LIBRARIES), *site_packages):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name


def frames_of_traceback(traceback: TracebackType | None, skip: str) -> tuple[Frame, ...]:
    """The frames of an exception, outermost first, without the leading ones that belong to the file `skip`."""
    frames = []
    while traceback is not None:
        if frames or traceback.tb_frame.f_code.co_filename != skip:
            frames.append(_frame(traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    return tuple(frames)


def frames_of_thread(innermost: FrameType | None) -> tuple[Frame, ...]:
    """The frames of a running thread, outermost first."""
    seen = []
    # The thread goes on whenever this loop lets it. Once, f_back was then no frame (seen on Python 3.11.7): what has
    # been read until there is still the innermost part of the stack. No frame is kept for longer than its turn: the
    # tensors of a function that returns meanwhile would live on in it.
    while isinstance(innermost, FrameType):
        seen.append((innermost.f_code, innermost.f_lineno, innermost.f_lasti))
        innermost = innermost.f_back
    return tuple(_frame(*where) for where in reversed(seen))


def _frame(code: CodeType, line: int | None, instruction: int) -> Frame:
    return Frame(code.co_filename, line or code.co_firstlineno, code.co_name, instruction)


def readers_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame that the reader wrote; without one, the innermost of all."""
    return next((frame for frame in reversed(frames) if frame.is_readers), frames[-1] if frames else None)


def tell_story(frames: tuple[Frame, ...]) -> Iterator[str]:
    """The frames as lines to print: the reader's own, then one line for the library in which it ended."""
    mine = [frame for frame in frames if frame.is_readers]
    for place, frame in enumerate(mine):
        left_out = len(mine) - 2 * _SHOWN
        if left_out > 0 and place == _SHOWN:  # of an endless recursion both ends tell all
            yield f"... {left_out} more of these"
        if left_out <= 0 or not _SHOWN <= place < len(mine) - _SHOWN:
            name = "" if frame.function.startswith("<") else f" in {frame.function}"
            yield f"{frame.where()}{name}:  {frame.code()}".rstrip(": ")
    if frames and not frames[-1].is_readers and mine:
        yield f"(raised inside {_short(frames[-1].file)}, line {frames[-1].line}, in {frames[-1].function})"
    elif frames and not mine:
        for frame in frames[-3:]:
            yield f"{frame.where()} in {frame.function}:  {frame.code()}".rstrip(": ")


def frames_of_dump(path: str) -> tuple[Frame, ...]:
    """The main thread's frames, outermost first, from a file written by faulthandler; empty until it is complete."""
    text = ""
    with suppress(OSError):
        text = Path(path).read_text(errors="replace")
    stacks = [_DUMPED.findall(part) for part in text.split("(most recent call first):")]
    of_main = next((stack for stack in stacks if any(os.path.basename(file) == "rank.py" for file, _, _ in stack)), [])
    return tuple(Frame(file, int(line), function) for file, line, function in reversed(of_main))


def tensors_in_line(traceback: TracebackType | None) -> tuple[str, ...]:
    """`x: float32[3] on cpu = [1.0, 2.0, 3.0]` for each tensor that the reader's failing line names, in its order.

    Also tensors that are attributes there (layer.weight), and lists and tuples of tensors.
    """
    walked = list(tracebacks.walk_tb(traceback))
    plain = frames_of_traceback(traceback, skip="")
    innermost = next((at for at, frame in zip(reversed(walked), reversed(plain)) if frame.is_readers), None)
    if innermost is None:
        return ()
    found: dict[str, str] = {}
    for name, value in _named_in(*innermost):
        if name not in found and (text := _text_of(value)):
            found[name] = f"{name}: {text}"
    return tuple(found.values())[:_MAX_TENSORS]


def _named_in(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """(name, value) of what the instructions of that line load: variables, and attributes of variables."""
    # In the order in which Python itself looks: a local name hides a global one.
    scope = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    current: tuple[str, Any] | None = None  # what the next attribute would be one of
    for instruction in dis.get_instructions(frame.f_code):
        if not instruction.positions or instruction.positions.lineno != line or instruction.opname == "CACHE":
            continue
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname in _LOADS or instruction.opname.startswith("LOAD_FAST"):
            for name in names:  # newer Pythons load two variables at once
                current = (name, scope[name]) if name in scope else None
                if current:
                    yield current
        elif instruction.opname == "LOAD_ATTR" and current:
            current = _attribute(*current, instruction.argval)
            if current:
                yield current
        else:
            current = None


def _attribute(owner: str, value: Any, name: str) -> tuple[str, Any] | None:
    """Read without running any of the reader's code: what lies in the object, or is a part of a module."""
    homes = [getattr(value, "__dict__", {})]
    if isinstance(value, nn.Module):
        homes += [value.__dict__.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules")]
    if isinstance(value, Tensor) and name in ("grad", "data"):
        return f"{owner}.{name}", value.grad if name == "grad" else value
    return next(((f"{owner}.{name}", home[name]) for home in homes if name in home), None)


def _text_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return _description_of(value) + _values_of(value)
    if type(value) in (list, tuple) and value and all(isinstance(item, Tensor) for item in value):
        shown = ", ".join(_description_of(item) for item in value[:_MAX_IN_A_LIST])
        return f"{type(value).__name__} of {len(value)}: {shown}{', ...' * (len(value) > _MAX_IN_A_LIST)}"
    return ""


def _description_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _values_of(tensor: Tensor) -> str:
    """Only of the host's memory: to read from a GPU, whose last call may never end, is to wait for it."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or not 0 < tensor.numel() <= _MAX_VALUES:
        return ""
    if not tensor.untyped_storage().nbytes():  # emptied, as FSDP does: there is nothing to read
        return " without memory"
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=4)
    return f" = {values.tolist()}"
