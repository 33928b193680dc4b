"""Shapes, dtypes and devices of the tensors that the failing line of a traceback names, as text.

Most bugs of distributed code are one of the three.
"""

import dis
import traceback as tracebacks
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime.ranks.places import frames_of_traceback

MAX_TENSORS = 8
MAX_IN_A_LIST = 4
MAX_VALUES = 6  # a tensor with no more numbers is shown whole
_NAMES = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF"}


def tensors_in_line(traceback: TracebackType | None) -> tuple[str, ...]:
    """`x: float32[3] on cpu = [1.0, 2.0, 3.0]` for each tensor that the reader's failing line names, in its order.

    Also tensors that are attributes there (layer.weight), and lists and tuples of tensors.
    """
    place = _readers_innermost(traceback)
    if place is None:
        return ()
    frame, line = place
    found: dict[str, str] = {}
    for name, value in _named_in(frame, line):
        if name not in found and (text := _text_of(value)):
            found[name] = f"{name}: {text}"
    return tuple(found.values())[:MAX_TENSORS]


def _readers_innermost(traceback: TracebackType | None) -> tuple[FrameType, int] | None:
    plain = frames_of_traceback(traceback, skip="")
    walked = list(tracebacks.walk_tb(traceback))
    return next((place for place, frame in zip(reversed(walked), reversed(plain)) if frame.is_readers), None)


def _named_in(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """(name, value) of what the instructions of that line load: variables, and attributes of variables."""
    # In the order in which Python itself looks: a local name hides a global one.
    scope = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    current: tuple[str, Any] | None = None  # what the next attribute would be one of
    for instruction in dis.get_instructions(frame.f_code):
        if not instruction.positions or instruction.positions.lineno != line or instruction.opname == "CACHE":
            continue
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname in _NAMES or instruction.opname.startswith("LOAD_FAST"):
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
    places = [getattr(value, "__dict__", {})]
    if isinstance(value, nn.Module):
        places += [value.__dict__.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules")]
    if isinstance(value, Tensor) and name in ("grad", "data"):
        return f"{owner}.{name}", value.grad if name == "grad" else value
    return next(((f"{owner}.{name}", place[name]) for place in places if name in place), None)


def _text_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return _description_of(value) + _values_of(value)
    if type(value) in (list, tuple) and value and all(isinstance(item, Tensor) for item in value):
        shown = ", ".join(_description_of(item) for item in value[:MAX_IN_A_LIST])
        return f"{type(value).__name__} of {len(value)}: {shown}{', ...' * (len(value) > MAX_IN_A_LIST)}"
    return ""


def _description_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _values_of(tensor: Tensor) -> str:
    """Only of the host's memory: to read from a GPU, whose last call may never end, is to wait for it."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or not 0 < tensor.numel() <= MAX_VALUES:
        return ""
    if not tensor.untyped_storage().nbytes():  # emptied, as FSDP does: there is nothing to read
        return " without memory"
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=4)
    return f" = {values.tolist()}"
