"""Many tensors in one message: a message costs alpha + beta M, and one for each tensor pays alpha again and again.

    N  numbers in a message

`pack` and `unpack` are inverse to each other: unpack(*pack(tensors)) are the tensors.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.costs.buckets import cut_buckets
from course_lib.groups.membership import Group, member

LARGE_BYTES = 250 << 20  # a message where nothing is computed meanwhile; bounds the copy that pack makes

Shapes = Sequence[Sequence[int]]


def pack(tensors: Sequence[Tensor]) -> tuple[Tensor, list[torch.Size]]:
    """The numbers of all `tensors`, of one dtype and device, one after the other (N,), and their shapes."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors]), [tensor.shape for tensor in tensors]


def unpack(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Views of `flat` (N,) in these shapes, one after the other. What is left at its end is padding."""
    shapes = [torch.Size(shape) for shape in shapes]
    sizes = [shape.numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat[:sum(sizes)].split(sizes), shapes)]


def unpack_into(tensors: Iterable[Tensor], flat: Tensor) -> None:
    """Copy the parts of `flat` (N,) into the tensors that it was packed from."""
    tensors = list(tensors)
    for tensor, part in zip(tensors, unpack(flat, [tensor.shape for tensor in tensors])):
        tensor.copy_(part)


def cut_tensors(tensors: Iterable[Tensor], cap_bytes: float) -> list[list[Tensor]]:
    """Lists of one dtype and device and of at most `cap_bytes`, a larger tensor being alone in its.

    In the order in which they are full when the tensors arrive one by one. Empty tensors are in none.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
    # Kinds are cut apart from each other, then all messages are ordered by their last tensor: that is when each is
    # full.
    messages = [[indices[place] for place in places] for indices in kinds.values()
                for places in cut_buckets([tensors[index].nbytes for index in indices], cap_bytes)]
    return [[tensors[index] for index in indices] for indices in sorted(messages, key=max)]


def require_cap(bucket_cap_mb: float) -> None:
    """ValueError for what is no size of a bucket."""
    if isinstance(bucket_cap_mb, bool) or not (isinstance(bucket_cap_mb, (int, float)) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb={bucket_cap_mb!r}: expected a number of MiB above 0")


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], group: Group = None, cap_bytes: float = LARGE_BYTES) -> None:
    """Give every rank what place 0 holds: one message for each dtype and device, or every `cap_bytes` of it."""
    me = member(group)
    for some in cut_tensors(tensors, cap_bytes) if me.n > 1 else []:
        flat, _ = pack(some)
        dist.broadcast(flat, group=me.group, group_src=0)
        # Place 0 has them already.
        if me.r > 0:
            unpack_into(some, flat)


@torch.no_grad()
def add_up(tensors: Iterable[Tensor], group: Group = None, divide_by: int = 1) -> None:
    """Give every rank the sum over the ranks, in messages like those of `broadcast`.

    Each rank's share is divided before it is sent: a sum of n large numbers might not fit into 16 bits.
    """
    me = member(group)
    for some in cut_tensors(tensors, LARGE_BYTES):
        flat, _ = pack(some)
        if divide_by != 1:
            flat /= divide_by
        dist.all_reduce(flat, group=me.group)
        unpack_into(some, flat)
