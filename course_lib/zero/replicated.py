"""Parameters that are not sharded: whole on every rank, their gradients averaged when a backward pass ends."""

import math
from collections.abc import Sequence

import torch.distributed as dist
from torch import nn

from course_lib.groups.gradients import GradientBucket, is_missing
from course_lib.groups.membership import Member
from course_lib.groups.packing import cut_tensors


class Replicated:
    """As in chapter 3, in one message a dtype: few and small parameters, norms say, that nobody wants to cut."""

    def __init__(self, parameters: Sequence[nn.Parameter], me: Member) -> None:
        self.parameters, self.me = list(parameters), me

    def average_gradients(self) -> None:
        for some in cut_tensors([p for p in self.parameters if p.requires_grad], math.inf):
            bucket = GradientBucket(some)
            for parameter in some:
                if parameter.grad is not None:
                    bucket.take(parameter, 1 / self.me.n)
            bucket.mark_missing()
            dist.all_reduce(bucket.gradient, group=self.me.group)
            for parameter, part in bucket.parts.items():
                parameter.grad = None if is_missing(part) else part
