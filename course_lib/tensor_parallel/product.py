"""The product of a column-parallel layer, whose backward pass sends one gradient while it computes the other.

    t ranks      x (B, T, D)      W (F/t, D) this rank's rows, bias b (F/t,)      y = x W^T + b (B, T, F/t)

Every rank reads the whole of x, so the gradient of x is a sum over the ranks: the paper's f. The sum is on its way
while the gradient of W, which no other rank needs, is computed:

    dx = dy W   start all-reduce        dW = dy^T x        wait

gathered_product.py has what chapter 7 adds: the product of tokens that are dealt out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.collectives.along import start_all_reduce
from course_lib.groups.membership import Member
from course_lib.runtime.torch_private import will_run


class ColumnProduct(torch.autograd.Function):
    """x (B, T, D), the same on all ranks, times this rank's columns -> (B, T, F/t)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_all_reduce(dx, ctx.me)
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ x.flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None


def current_needs(ctx: Any) -> list[bool]:
    """Whether the backward pass that runs now goes on to x, to weight and to bias.

    A zero-bubble schedule calls backward twice, for x and later for weight, and neither call may compute or send what
    is the other's. ctx.needs_input_grad would be True both times: it says whether some backward pass goes there.
    """
    def needs(index: int) -> bool:
        if not ctx.needs_input_grad[index]:
            return False
        try:
            return will_run(ctx.next_functions[index][0])
        except (AttributeError, RuntimeError):  # a torch without it; torch.autograd.grad for a leaf that was given here
            return True

    return [needs(index) for index in range(3)]
