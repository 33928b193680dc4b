"""The tensors in anything that functions take and return, and the memory behind one: an answer for all who look."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime.torch_private import tree_leaves

_DICTS = (dict, defaultdict)  # pytree takes their values in the same order
_NESTING = (tuple, list, *_DICTS)
NO_TENSORS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout,
                        torch.memory_format})


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in (nested lists, tuples, dicts, dataclasses and whatever torch's pytree knows of) `value`, in order.

    A recorder asks this several times a torch operator, and an operator's arguments are nearly always tensors and plain
    values side by side: those do not go through pytree, which takes ten times as long.
    """
    if isinstance(value, Tensor):
        return [value]
    if type(value) in _DICTS:
        value = list(value.values())
    elif type(value) not in (tuple, list):
        return _tensors_among(tree_leaves(value))
    found: list[Tensor] = []
    for item in value:
        if type(item) in NO_TENSORS:  # asked first: isinstance(5, Tensor) takes longer
            continue
        if isinstance(item, Tensor):
            found.append(item)
        else:
            found += tensors_in(item) if type(item) in _NESTING else _tensors_among(tree_leaves(item))
    return found


def _tensors_among(leaves: list[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors_in([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found


@cache
def wraps_tensors(kind: type) -> bool:
    """Whether `kind` is a tensor subclass that runs its operators on inner tensors, as DTensor does."""
    return hasattr(kind, "__tensor_flatten__")


def storages_of(tensor: Tensor) -> Sequence[torch.UntypedStorage]:
    """The memory behind `tensor`: one storage, or several if it is sparse or wraps other tensors."""
    kind = type(tensor)
    if kind is not Tensor and kind is not nn.Parameter and wraps_tensors(kind):
        inner = tensors_in([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
        return [storage for one in inner for storage in storages_of(one)]
    if tensor.layout is torch.strided:
        return (tensor.untyped_storage(),)
    return (tensor._indices().untyped_storage(), tensor._values().untyped_storage()) if tensor.is_sparse else ()


def copy_to_host(tensor: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """`tensor`, as it is now, in memory of the host that nobody else writes to; the function waits until it is there.

    A GPU copies into pinned memory, which its copy engine writes by itself. What this thread asks of the GPU afterwards
    stands behind the copy, so `tensor` may be changed in place at once. torch keeps the memory for the next copy.
    """
    if tensor.device.type == "cpu":
        return tensor.detach().clone(), lambda: None
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True, requires_grad=False)
    copy.copy_(tensor.detach(), non_blocking=True)
    there = torch.Event(tensor.device)
    there.record(torch.accelerator.current_stream(tensor.device))
    return copy, there.synchronize
