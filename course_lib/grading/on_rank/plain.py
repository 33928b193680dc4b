"""Answers as plain data: nothing with methods of the reader's own leaves a rank. And calls, counted."""

import operator
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from course_lib.runtime import record_communication

Calls = list[list[Any]]  # [op, message bytes, bytes sent] of each call
UNCOUNTED = ("sent a message whose bytes cannot be counted, as those of a sparse tensor: send the numbers and their "
             "places as two dense tensors")


def plain(value: Any) -> Any:
    """`value` as data, on the rank: a copy of a tensor, None, or words that say what else it is."""
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        dense = value.detach()
        return dense.to("cpu", copy=True).contiguous() if dense.layout is torch.strided else f"a {dense.layout} tensor"
    return None if value is None else kind(value)


def kind(value: Any) -> str:
    """What `value` is, in words: "a dict", "an int64"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def data(value: Any) -> Any:
    """`value` as strings, whole numbers and floats in lists and dicts; words for what is none of them.

    Whatever is a whole number or a real one is taken, of numpy's types, torch's or Python's: np.int64(3) is 3,
    Fraction(1, 2) is 0.5. Tuples, ranges, arrays and tensors are lists; a dict is in the order of its names.
    """
    if value is None or isinstance(value, str):
        return value if value is None else str(value)
    if isinstance(value, dict):
        return {str(name): data(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple | range):
        return [data(each) for each in value]
    if hasattr(value, "tolist") and (listed := value.tolist()) is not value:  # numpy's and torch's
        return data(listed)
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, Real) else kind(value)


def number(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a number."""
    value = function(*inputs)
    return {"value": kind(value) if isinstance(value, bool | str) else data(value)}


def values(function: Callable, inputs: list[Any]) -> Any:
    """The run of an exercise that asks for numbers and strings in lists and dicts."""
    return data(function(*inputs))


def tensor(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a tensor, made of the first input or into it; and what was sent."""
    returned, calls = count_calls(function, *inputs)
    sent = [num_bytes for op, _, num_bytes in calls if op == "send"]
    return {"returned": plain(returned), "tensor": plain(inputs[0]), "messages": len(sent), "sent": round(sum(sent))}


def ring_bytes(num_bytes: int, n: int) -> int:
    """What a rank sends in an all-reduce of `num_bytes` over n ranks, by the ring convention."""
    return -(-2 * (n - 1) * num_bytes // n)


def count_calls(function: Callable, *arguments: Any) -> tuple[Any, Calls]:
    """What `function` returns, and its calls of torch.distributed. ValueError for one whose bytes are not known."""
    with record_communication() as log:
        returned = function(*arguments)
    events = [event for event in log.events if event.op != "barrier"]
    if unknown := next((event for event in events if event.message_bytes is None), None):
        raise ValueError(f"{unknown.op} {UNCOUNTED}")
    return returned, [[event.op, event.message_bytes, float(event.sent_bytes or 0)] for event in events]
