"""The tensors in anything that functions take and return: one answer for recorders, DDP's and FSDP's hooks alike."""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in (nested lists, tuples, dicts, dataclasses and whatever torch's pytree knows of) `value`, in order.

    A recorder asks this several times a torch operator, and an operator's arguments are nearly always tensors and plain
    values side by side: those do not go through pytree, which takes ten times as long.
    """
    if isinstance(value, Tensor):
        return [value]
    if type(value) not in (tuple, list):
        return _tensors_among(tree_leaves(value))
    found: list[Tensor] = []
    for item in value:
        if type(item) in _PLAIN:  # asked first: isinstance(5, Tensor) takes longer
            continue
        if isinstance(item, Tensor):
            found.append(item)
        else:
            found += tensors_in(item) if type(item) in (tuple, list) else _tensors_among(tree_leaves(item))
    return found


def _tensors_among(leaves: list[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors_in([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
    return found
