"""Answers as plain data: nothing with methods of the reader's own leaves a rank. And calls, counted."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime import record_communication

Calls = list[list[Any]]  # [op, message bytes, bytes sent] of each call


def plain(value: Any) -> Any:
    """`value` as data, on the rank: a copy of a tensor, None, or words that say what else it is."""
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        dense = value.detach()
        return dense.to("cpu", copy=True).contiguous() if dense.layout is torch.strided else f"a {dense.layout} tensor"
    return None if value is None else f"a {type(value).__name__}"


def number(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a number."""
    value = function(*inputs)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"value": float(value) if is_number else f"a {type(value).__name__}" if value is not None else None}


def tensor(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a tensor, made of the first input or into it."""
    returned = function(*inputs)
    return {"returned": plain(returned), "tensor": plain(inputs[0])}


def count_calls(function: Callable, *arguments: Any) -> tuple[Any, Calls]:
    """What `function` returns, and its calls of torch.distributed."""
    with record_communication() as log:
        returned = function(*arguments)
    return returned, [[event.op, event.message_bytes or 0, float(event.sent_bytes or 0)] for event in log.events
                      if event.op != "barrier"]
