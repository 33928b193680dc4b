"""Parameters that are not sharded: whole on every rank, their gradients averaged when a backward pass ends."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from course_lib.groups.gradients import is_missing, mark_missing, take_gradient
from course_lib.groups.membership import Member


class Replicated:
    """As in chapter 3, in one message a dtype: few and small parameters, norms say, that nobody wants to cut."""

    def __init__(self, parameters: Sequence[nn.Parameter], me: Member) -> None:
        self.parameters, self.me = list(parameters), me

    def average_gradients(self) -> None:
        trained = [p for p in self.parameters if p.requires_grad]
        for kind in dict.fromkeys((p.dtype, p.device) for p in trained):
            some = [p for p in trained if (p.dtype, p.device) == kind]
            flat = torch.empty(sum(p.numel() for p in some), dtype=kind[0], device=kind[1])
            parts = [part.view(p.shape) for p, part in zip(some, flat.split([p.numel() for p in some]))]
            for p, part in zip(some, parts):
                if p.grad is None:
                    mark_missing(part)
                else:
                    take_gradient(p.grad, part)
            if self.me.n > 1:
                dist.all_reduce(flat, group=self.me.group)
                flat.mul_(1 / self.me.n)
            for p, part in zip(some, parts):
                p.grad = None if is_missing(part) else part
