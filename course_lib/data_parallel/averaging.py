"""The steps that lead to DistributedDataParallel, and the weight that makes the mean right where batches differ.

    n ranks      b_r rows on rank r, B = b_1 + ... + b_n      g_r the gradient of the mean loss over them

The gradient of the mean over all B rows is the sum of b_r/B g_r; an average over the ranks is the sum of 1/n g_r. They
agree when all b_r are B/n. Otherwise each rank multiplies its loss by n b_r / B first, and they agree again.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from course_lib.groups.membership import member
from course_lib.groups.packing import pack, unpack
from course_lib.runtime import device


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
    if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 0:
        raise ValueError(f"num_rows={num_rows!r}: expected the number of rows on this rank, at least 0")
    if total is None:
        rows = torch.tensor(num_rows, device=me.wire(device()))
        dist.all_reduce(rows, group=me.group)
        total = int(rows)
    if not 0 < total >= num_rows:
        raise ValueError(f"total={total} rows on all ranks, {num_rows} of them here: expected at least one, and no "
                         "fewer than there are here")
    return me.n * num_rows / total
