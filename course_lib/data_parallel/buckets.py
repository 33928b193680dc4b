"""Buckets: many gradients in one message.

    n ranks      N numbers in a bucket      g_r the gradient on rank r

A message costs alpha + beta M (chapter 2): one for each parameter pays alpha a hundred times, one for all of them
cannot start before the last gradient is there. A bucket is the middle, and what is ready is sent.

A bucket holds g_r / n, this rank's share of the average, so that whoever communicates it has only to add. Divided
before it is sent, too: the sum of n large gradients might not fit into 16 bits, their average does.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives.messages import Member


class Bucket:
    """The parameters of one message. During a backward pass `gradient` (N,) is there, and each .grad a part of it.

    `ready` says that every parameter has brought its gradient. `group` is the process group to add it up in.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        self.index, self.parameters, self.group = index, parameters, group
        self.num_elements = sum(parameter.numel() for parameter in parameters)
        self.starts = torch.tensor([0] + [parameter.numel() for parameter in parameters[:-1]]).cumsum(0)
        self.num_bytes = self.num_elements * parameters[0].element_size()
        self.gradient: Tensor | None = None
        self.close()

    def open(self) -> None:
        """New memory for each backward pass: a .grad that the reader kept from the last one stays what it was."""
        like = self.parameters[0]
        self.gradient = torch.empty(self.num_elements, dtype=like.dtype, device=like.device)  # (N,)
        parts = self.gradient.split([parameter.numel() for parameter in self.parameters])
        self.parts = {p: part.view(p.shape) for p, part in zip(self.parameters, parts)}

    def take(self, parameter: nn.Parameter) -> None:
        """Move the gradient of `parameter` in, as a share: one pass over it, which divides and copies."""
        if self.gradient is None:
            self.open()
        part = self.parts[parameter]
        torch.mul(parameter.grad, 1 / self.group.size(), out=part)
        parameter.grad = part
        self.missing.discard(parameter)

    def complete(self) -> set[nn.Parameter]:
        """Backward is over: zeros for the parameters that still have no gradient at all, which are returned."""
        if self.gradient is None:
            self.open()
        for parameter in [p for p in self.missing if p.grad is not None]:
            self.take(parameter)  # from an earlier backward pass, inside no_sync perhaps
        without = set(self.missing)
        for parameter in without:
            self.parts[parameter].zero_()
        self.missing.clear()
        return without

    def zeros(self) -> list[nn.Parameter]:
        """The parameters whose part of `gradient` is all zeros. Few begin with one: a cheap first look."""
        begin_with_zero = self.gradient[self.starts.to(self.gradient.device)] == 0  # (number of parameters,)
        candidates = [self.parameters[index] for index in begin_with_zero.nonzero().flatten().tolist()]
        return [parameter for parameter in candidates if not self.parts[parameter].any()]

    def close(self) -> None:
        """The gradients stay in .grad; the bucket forgets them."""
        self.gradient, self.parts, self.missing = None, {}, set(self.parameters)

    @property
    def ready(self) -> bool:
        return not self.missing

    def __repr__(self) -> str:
        return f"Bucket {self.index}: {len(self.parameters)} parameters, {self.num_bytes:,} bytes"


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


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: float, group: dist.ProcessGroup) -> list[Bucket]:
    """Buckets of the parameters in reverse: backward begins at the end of the model, where it was registered last."""
    backward = [parameter for parameter in parameters if parameter.requires_grad and parameter.numel()][::-1]
    return [Bucket(index, content, group) for index, content in enumerate(fill(backward, cap_bytes))]


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
