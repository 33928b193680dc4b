"""What the recorders that watch torch operators share: the mode that sees them, and how to look at one."""

from collections.abc import Iterable
from functools import cache

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.runtime.tensors import tensors_in


class WatchingMode(TorchDispatchMode):
    """A TorchDispatchMode that only looks. The mode itself costs some 10 us a torch operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Usually torch guards a mode against torch.compile, at twice the cost; here is nothing to guard."""
        return False


@cache
def wraps_tensors(kind: type) -> bool:
    """Whether `kind` is a tensor subclass that runs its operators on inner tensors, as DTensor does.

    A mode that answers NotImplemented for such a type is asked again for each inner tensor.
    """
    return hasattr(kind, "__tensor_flatten__")


def storages(tensor: torch.Tensor) -> Iterable[torch.UntypedStorage]:
    """The memory behind `tensor`: one storage, or several if it is sparse or wraps other tensors."""
    if wraps_tensors(type(tensor)):
        for inner in tensors_in([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]):
            yield from storages(inner)
    elif tensor.is_sparse:
        yield from (tensor._indices().untyped_storage(), tensor._values().untyped_storage())
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
