"""What a rank's names hold: bytes of tensors by kind, counted by storage, so that views and tied weights count once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.runtime.instruments.recordings import storages
from course_lib.runtime.tensors import tensors_in

KINDS = ("parameters", "gradients", "optimizer_state", "other")  # as record_memory's; nothing here is an activation


@dataclass(frozen=True)
class NameHolding:
    """One name: what its value is, in words, and how many bytes of tensors it holds."""

    name: str
    what: str  # "float32[4, 8]", "Linear", "list"
    num_bytes: int


@dataclass(frozen=True)
class RankHoldings:
    """All names of one rank. `by_kind` counts each storage once, as the strongest kind that applies."""

    names: tuple[NameHolding, ...]
    by_kind: dict[str, int]

    @property
    def num_bytes(self) -> int:
        """Of all tensors together."""
        return sum(self.by_kind.values())


def find_holdings(names: dict[str, Any]) -> RankHoldings:
    """What these names hold, biggest first."""
    kinds: dict[int, tuple[int, int]] = {}  # storage -> (place in KINDS, bytes)
    found = []
    for name, value in names.items():
        own: dict[int, int] = {}
        for kind, tensor in tensors_by_kind(value):
            for storage in _storages(tensor):
                place = KINDS.index(kind)
                known = kinds.get(storage._cdata, (place, 0))[0]
                kinds[storage._cdata] = min(known, place), storage.nbytes()
                own[storage._cdata] = storage.nbytes()
        found.append(NameHolding(name, describe_value(value), sum(own.values())))
    by_kind = {kind: sum(size for place, size in kinds.values() if KINDS[place] == kind) for kind in KINDS}
    return RankHoldings(tuple(sorted(found, key=lambda each: (-each.num_bytes, each.name))), by_kind)


def tensors_by_kind(value: Any) -> Iterator[tuple[str, Tensor]]:
    """(kind, tensor) for all that can be seen in a value: modules, optimisers, lists and dicts, and objects' parts."""
    if isinstance(value, nn.Module):
        for parameter in value.parameters():
            yield from _of_parameter(parameter)
        yield from (("other", buffer) for buffer in value.buffers())
    elif isinstance(value, Optimizer):
        for group in value.param_groups:
            for parameter in group["params"]:
                yield from _of_parameter(parameter)
        yield from (("optimizer_state", tensor) for tensor in tensors_in(list(value.state.values())))
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_by_kind(part)
    else:
        for tensor in tensors_in(value):
            yield from _of_parameter(tensor) if isinstance(tensor, nn.Parameter) else _of_tensor(tensor)
        for part in getattr(value, "__dict__", {}).values() if not isinstance(value, (type, Tensor)) else ():
            if isinstance(part, (nn.Module, Optimizer, Tensor)):
                yield from tensors_by_kind(part)


def _of_parameter(parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "parameters", parameter
    if parameter.grad is not None:
        yield "gradients", parameter.grad


def _of_tensor(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "other", tensor
    if tensor.is_leaf and tensor.grad is not None:
        yield "gradients", tensor.grad


def _storages(tensor: Tensor) -> list[torch.UntypedStorage]:
    try:
        return list(storages(tensor))
    except (RuntimeError, NotImplementedError):  # a tensor without memory
        return []


def describe_value(value: Any) -> str:
    """`float32[4, 8]` for a tensor, otherwise the class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (int, float, str, bool)) and len(repr(value)) <= 20:
        return repr(value)
    return type(value).__name__
