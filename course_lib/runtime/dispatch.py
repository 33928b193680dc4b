"""What the recorders that watch torch operators share (a TorchDispatchMode sees each operator with its arguments)."""

from collections.abc import Iterable
from typing import Any

import torch


def flat_tensors(value: Any) -> Iterable[torch.Tensor]:
    """All tensors in (nested lists and tuples of) `value`, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat_tensors(item)


def wraps_tensors(kind: type) -> bool:
    """Whether `kind` is a tensor subclass that runs its operators on inner tensors, as DTensor does.

    A mode that answers NotImplemented for such a type is asked again for each inner tensor.
    """
    return hasattr(kind, "__tensor_flatten__")


def storages(tensor: torch.Tensor) -> Iterable[torch.UntypedStorage]:
    """The memory behind `tensor`: one storage, several for a sparse or wrapping tensor, none for a meta tensor."""
    if wraps_tensors(type(tensor)):
        for name in tensor.__tensor_flatten__()[0]:
            yield from storages(getattr(tensor, name))
    elif tensor.is_sparse:
        yield from (tensor._indices().untyped_storage(), tensor._values().untyped_storage())
    elif tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        if storage.device.type != "meta":  # a fake tensor claims another device, its storage does not
            yield storage
