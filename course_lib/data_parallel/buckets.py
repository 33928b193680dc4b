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

from course_lib.groups.membership import Member
from course_lib.groups.packing import fill


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


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: float, group: dist.ProcessGroup) -> list[Bucket]:
    """Buckets of the parameters in reverse: backward begins at the end of the model, where it was registered last."""
    backward = [parameter for parameter in parameters if parameter.requires_grad and parameter.numel()][::-1]
    return [Bucket(index, content, group) for index, content in enumerate(fill(backward, cap_bytes))]


def used_by_nobody(without: set[nn.Parameter], buckets: list[Bucket], me: Member) -> set[nn.Parameter]:
    """The parameters that no rank has a gradient for, where each rank knows only those it is `without` itself.

    Their average is zero in every element, which all ranks see: only if there is such a one do they ask one another, in
    a message of a few bytes. They must know: weight decay moves a parameter with a gradient of zeros, but not one with
    none.
    """
    suspects = [parameter for bucket in buckets for parameter in bucket.zeros()]
    if not suspects:
        return set()
    users = torch.tensor([parameter not in without for parameter in suspects], dtype=torch.int32)
    users = users.to(suspects[0].device)
    dist.all_reduce(users, group=me.group)
    return {parameter for parameter, count in zip(suspects, users.tolist()) if count == 0}
