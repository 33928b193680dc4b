"""The product of a column-parallel layer, whose backward pass sends one gradient while it computes the other.

    t ranks      x (B, T, D)      W (F/t, D) this rank's rows, bias b (F/t,)      y = x W^T + b (B, T, F/t)

Every rank reads the whole of x, so its gradient is a sum over the ranks: the paper's f. It is on its way while the
gradient of W, which nobody else needs, is computed:

    dx = dy W   start all-reduce        dW = dy^T x        wait

With `dealt`, each rank holds T/t tokens of x: they are gathered before the product, and the gradient's sum is dealt out
again (Korthikanti et al. 2022). The gathered x is kept for backward; `gather_again` keeps only the own tokens, and
gathers the rest a second time, while dx is computed: less memory for a further all-gather.

A zero-bubble schedule calls backward twice, for dx and later for dW: each call does, and sends, its own part only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.collectives.along import start_all_gather_along, start_all_reduce, start_reduce_scatter_along
from course_lib.groups.membership import Member
from course_lib.runtime.torch_private import will_run


class ColumnProduct(torch.autograd.Function):
    """x (B, T, D), or (B, T/t, D) if `dealt`, times this rank's columns -> (B, T, F/t)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member, dealt: bool, gather_again: bool
                ) -> Tensor:
        """x (B, T, D), or (B, T/t, D) where tokens are dealt out, times this rank's rows of weight (F/t, D): (B, T,
        F/t).
        """
        whole = start_all_gather_along(x, -2, me)() if dealt else x  # (B, T, D)
        ctx.me, ctx.dealt, ctx.again = me, dealt, dealt and gather_again
        ctx.save_for_backward(x if ctx.again else whole, weight)
        return F.linear(whole, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), me = ctx.saved_tensors, ctx.me
        need_x, need_weight, need_bias = (is_wanted(ctx, place) for place in range(3))
        gathering = start_all_gather_along(x, -2, me) if ctx.again and need_weight else None
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_reduce_scatter_along(dx, -2, me) if ctx.dealt else start_all_reduce(dx, me)
        if need_weight:
            whole = gathering() if gathering else x  # (B, T, D)
            d_weight = dy.flatten(0, -2).T @ whole.flatten(0, -2)  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight if need_weight else None, d_bias, None, None, None


def is_wanted(ctx: Any, place: int) -> bool:
    """Whether the backward pass that runs now goes on to the tensor at `place` among the arguments of forward.

    ctx.needs_input_grad says whether some backward pass may.
    """
    if not ctx.needs_input_grad[place]:
        return False
    try:
        return will_run(ctx.next_functions[place][0])
    except (AttributeError, RuntimeError):  # a torch without it; torch.autograd.grad for a leaf that was given here
        return True
