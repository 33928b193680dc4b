"""The steps that lead to DistributedDataParallel: an all-reduce for each gradient, one for all, and buckets between.

    n ranks      N numbers in a bucket      b_r rows on rank r, B = b_1 + ... + b_n      g_r the gradient on rank r

A message costs alpha + beta M (chapter 2): one for each parameter pays alpha a hundred times, one for all of them
cannot start before the last gradient is there. A bucket is the middle, and what is ready is sent. It holds g_r / n,
this rank's share of the average, so that whoever communicates it has only to add. Divided before it is sent, too: the
sum of n large gradients might not fit into 16 bits, their average does.

The gradient of the mean over all B rows is the sum of b_r/B g_r; an average over the ranks is the sum of 1/n g_r. They
agree when all b_r are B/n. Otherwise each rank multiplies its loss by n b_r / B first, and they agree again.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.gradients import GradientBucket, cut_tensors, pack, unpack
from course_lib.groups.membership import Group, is_whole, member
from course_lib.runtime import device
from course_lib.runtime.torch_private import foreach_norm


def average_each(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """After backward: one all-reduce for each .grad. Simple, and a message of a few bytes for each bias.

    A parameter without a gradient is left out, so all ranks must have the same ones.
    """
    n = member(group).n
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= n


def average_flat(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """After backward: all gradients, of one dtype, in one message. Few messages, but none before backward is over."""
    n = member(group).n
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # One message pays the latency once, but it can begin only when the last gradient is there.
    flat, shapes = pack(gradients)  # (N,)
    dist.all_reduce(flat, group=group)
    flat /= n
    for gradient, part in zip(gradients, unpack(flat, shapes)):
        gradient.copy_(part)


def loss_weight(num_rows: int, group: dist.ProcessGroup | None = None, total: int | None = None) -> float:
    """n b_r / B: multiply the mean loss over this rank's `num_rows` by it, and averaged gradients weigh all rows alike.

    `total`, B, where it is known; otherwise every rank of the group calls this, and one number is added up. A rank
    without rows gets 0, and needs a loss that is not the mean of nothing: (0 * logits).sum() will do.
    """
    me = member(group)
    if not is_whole(num_rows, 0):
        raise ValueError(f"num_rows={num_rows!r}: expected the number of rows on this rank, at least 0")
    if total is None:
        rows = torch.tensor(num_rows, device=me.wire(device()))
        dist.all_reduce(rows, group=me.group)
        total = int(rows)
    if not 0 < total >= num_rows:
        raise ValueError(f"total={total} rows on all ranks, {num_rows} of them here: expected at least one, and no "
                         "fewer than there are here")
    return me.n * num_rows / total


class Bucket(GradientBucket):
    """The parameters of one message. During a backward pass `gradient` (N,) is there, and each .grad a part of it.

    `ready` says that every parameter has brought its gradient. `group` is the process group to add it up in. With a
    `reduce_dtype` that is not the parameters' the shares are in it, and each .grad is there when they are added up.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], group: dist.ProcessGroup,
                 reduce_dtype: torch.dtype | None = None) -> None:
        super().__init__(parameters, reduce_dtype=reduce_dtype)
        self.index, self.group = index, group
        self.num_bytes = self.num_elements * self.reduce_dtype.itemsize
        self.is_grad = self.reduce_dtype == parameters[0].dtype  # whether .grad can be a part of it

    def take(self, parameter: nn.Parameter) -> Tensor:
        """Move the gradient of `parameter` in, as a share: one pass over it, which divides and copies."""
        # Divided on the way in: sums of 16-bit numbers over many ranks could overflow, sums of shares do not.
        part = super().take(parameter, 1 / self.group.size())
        parameter.grad = part if self.is_grad else None
        return part

    def complete(self) -> set[nn.Parameter]:
        """Backward is over. Returns the parameters that still have no gradient at all; they are marked as missing."""
        for parameter in [p for p in self.missing if p.grad is not None]:
            self.take(parameter)  # from an earlier backward pass, inside no_sync perhaps
        return self.mark_missing()

    def hand_out(self, without: set[nn.Parameter], unused: set[nn.Parameter]) -> None:
        """.grad becomes the average where it is not a part of this memory already; the `unused` keep what they had."""
        late = without if self.is_grad else set(self.parameters)
        for parameter, average in self.parts_as_gradients().items():
            if parameter in late and parameter not in unused:
                parameter.grad = average

    @property
    def ready(self) -> bool:
        """Whether every gradient of the bucket is there, so that it can be sent."""
        return not self.missing

    def __repr__(self) -> str:
        return f"Bucket {self.index}: {len(self.parameters)} parameters, {self.num_bytes:,} bytes"


def make_buckets(parameters: Iterable[nn.Parameter], cap_bytes: float, group: dist.ProcessGroup,
                 reduce_dtype: torch.dtype | None = None) -> list[Bucket]:
    """Buckets of the parameters in reverse: backward begins at the end of the model, where it was registered last."""
    backward = [parameter for parameter in parameters if parameter.requires_grad][::-1]
    return [Bucket(index, content, group, reduce_dtype)
            for index, content in enumerate(cut_tensors(backward, cap_bytes))]


def ask_for_unused_parameters(without: set[nn.Parameter], buckets: Sequence[Bucket], group: Group) -> set[nn.Parameter]:
    """As missing_everywhere, where a hook has lost the marks: it sent 16 bits, or the largest numbers only.

    What nobody has is zero in every element, which all ranks see: only if there is such a parameter do they send the
    marks again, one number for each. A GPU is asked once for all of a dtype, not for each parameter.
    """
    me, device = member(group), buckets[0].gradient.device
    largest = [torch.stack(foreach_norm(list(bucket.parts.values()), math.inf)).to(device, torch.float64)
               for bucket in buckets]
    parameters = [parameter for bucket in buckets for parameter in bucket.parts]
    suspects = [parameter for parameter, size in zip(parameters, torch.cat(largest).tolist()) if size == 0]
    if not suspects:
        return set()
    marks = torch.tensor([-0.0 if p in without else 0.0 for p in suspects], device=me.wire(suspects[0].device))
    dist.all_reduce(marks, group=me.group)
    return {parameter for parameter, mark in zip(suspects, marks.tolist()) if math.copysign(1, mark) < 0}
