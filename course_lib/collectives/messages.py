"""What the collectives do with the tensors they are given, before the first message and after the last.

How two partial results become one: SUM, AVG, MAX and MIN of torch.distributed.ReduceOp.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib.groups.membership import Member, describe, sendable

# Each computes (a, b) -> out. A NaN on any rank stays NaN, also in MAX and MIN.
COMBINE: dict[ReduceOp.RedOpType, Callable[..., Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,  # a sum, and a division at the end
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
}


def check(op: ReduceOp.RedOpType, tensor: Tensor) -> None:
    """ValueError for an op that is not in COMBINE, or that the dtype of `tensor` does not allow."""
    if not (isinstance(op, ReduceOp.RedOpType) and op in COMBINE):
        raise ValueError(f"unknown op {op!r}: expected ReduceOp.SUM, AVG, MAX or MIN")
    if op == ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"ReduceOp.AVG of {tensor.dtype}: expected a floating-point tensor, or ReduceOp.SUM")


def combine(op: ReduceOp.RedOpType, partial: Tensor, received: Tensor) -> Tensor:
    """`partial` takes in what was received, and is returned."""
    return COMBINE[op](partial, received, out=partial)


def finish(op: ReduceOp.RedOpType, total: Tensor, n: int) -> Tensor:
    """`total` over n ranks becomes the result, and is returned: AVG divides, once."""
    # At the end, and not in each step: every division rounds.
    return total.div_(n) if op == ReduceOp.AVG else total


@contextmanager
def in_place(tensor: Tensor, me: Member) -> Iterator[Tensor]:
    """`tensor` of any shape and stride as a flat one (N,) to send and receive into; `tensor` has the result after."""
    flat = sendable(tensor, me).view(-1)
    yield flat
    # `sendable` has made a copy where the tensor is not contiguous, or not where the wire begins.
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def output(out: Tensor | None, shape: Sequence[int], tensor: Tensor) -> Tensor:
    """`out`, or a new tensor of `shape` like `tensor`, the input.

    ValueError unless `out` has as many elements as `shape`, and the dtype and device of `tensor`.
    """
    if out is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    same_size = out.numel() == math.prod(shape)
    if not (same_size and out.dtype == tensor.dtype and out.device == tensor.device):
        # On the device "meta", which has no memory: only the description is wanted.
        expected = describe(torch.empty(shape, dtype=tensor.dtype, device="meta"), tensor.device)
        raise ValueError(f"out is {describe(out)}: expected {expected}, "
                         f"or another shape of {math.prod(shape)} elements")
    return out


def require_rows(tensor: Tensor) -> None:
    """ValueError for a tensor without a dim 0 to cut along."""
    if tensor.dim() == 0:
        raise ValueError("the tensor has no dimensions: expected one that can be cut along dim 0, shape (N, ...)")
