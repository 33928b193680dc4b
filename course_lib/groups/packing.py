"""Many tensors in one message."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Member


def fill(tensors: Iterable[Tensor], cap_bytes: float) -> list[list[Tensor]]:
    """Cut `tensors` into lists of one dtype and device and of at most `cap_bytes`, a larger tensor being alone in its.

    In the order in which they are full when the tensors arrive one by one.
    """
    full: list[list[Tensor]] = []
    filling: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    arrived: dict[int, int] = {}  # id of a list -> when its last tensor came
    for time, tensor in enumerate(tensors):
        kind = (tensor.dtype, tensor.device)
        held = sum(map(num_bytes, filling.get(kind, [])))
        if kind not in filling or held + num_bytes(tensor) > cap_bytes:
            filling[kind] = []
            full.append(filling[kind])
        filling[kind].append(tensor)
        arrived[id(filling[kind])] = time
    return sorted(full, key=lambda tensors: arrived[id(tensors)])


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor], me: Member, cap_bytes: float = 250 << 20) -> None:
    """Give every rank what place 0 holds: one message for each dtype and device, or every `cap_bytes` of it."""
    for some in fill((tensor for tensor in tensors if tensor.numel()), cap_bytes):
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        dist.broadcast(flat, group=me.group, group_src=0)
        if me.r > 0:
            for tensor, part in zip(some, flat.split([tensor.numel() for tensor in some])):
                tensor.copy_(part.view(tensor.shape))


@torch.no_grad()
def average(tensors: Iterable[Tensor], me: Member, cap_bytes: float = 250 << 20) -> None:
    """Give every rank the average over the ranks, in messages like those of `broadcast`."""
    for some in fill((tensor for tensor in tensors if tensor.numel()), cap_bytes):
        flat = torch.cat([tensor.reshape(-1) for tensor in some]) / me.n
        dist.all_reduce(flat, group=me.group)
        for tensor, part in zip(some, flat.split([tensor.numel() for tensor in some])):
            tensor.copy_(part.view(tensor.shape))


def num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
