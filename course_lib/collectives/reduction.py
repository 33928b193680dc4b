"""How two partial results become one: SUM, AVG, MAX and MIN of torch.distributed.ReduceOp."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ReduceOp

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
