"""Chapter 7: the product of a column-parallel layer where each rank holds a t-th of the tokens.

    t ranks      x (B, T/t, D) this rank's tokens      W (F/t, D), bias (F/t,)      y (B, T, F/t) of all tokens

The two halves of ColumnProduct's all-reduce stand on either side: x is gathered before the product, and the sum of its
gradients is dealt out again, each rank's tokens to that rank. As many bytes, and what lies between the layers is kept
once, not t times. What backward needs of x can be kept in two ways:

    GatheredColumnProduct      the gathered x, (B, T, D)
    RegatheredColumnProduct    this rank's tokens, (B, T/t, D); the others' are gathered a second time, while dx is
                               computed: less memory for a third message

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.collectives.along import start_all_gather_along, start_reduce_scatter_along
from course_lib.groups.membership import Member
from course_lib.tensor_parallel.product import current_needs


class GatheredColumnProduct(torch.autograd.Function):
    """x (B, T/t, D), this rank's tokens, times this rank's columns -> (B, T, F/t)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        x = start_all_gather_along(x, -2, me)()  # (B, T, D)
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_reduce_scatter_along(dx, -2, ctx.me)  # (B, T/t, D): the sum of this rank's tokens
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ x.flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None


class RegatheredColumnProduct(torch.autograd.Function):
    """x (B, T/t, D), this rank's tokens, times this rank's columns -> (B, T, F/t). Keeps no other rank's tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        ctx.me = me
        ctx.save_for_backward(x, weight)  # before it is gathered
        x = start_all_gather_along(x, -2, me)()  # (B, T, D)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = current_needs(ctx)
        if need_weight:
            gathering = start_all_gather_along(x, -2, ctx.me)  # first: dx is computed while it travels
        if need_x:
            dx = dy @ weight  # this rank's summand (B, T, D)
            adding_up = start_reduce_scatter_along(dx, -2, ctx.me)  # (B, T/t, D): the sum of this rank's tokens
        # While the summands travel: two gradients that no other rank needs.
        d_weight = dy.flatten(0, -2).T @ gathering().flatten(0, -2) if need_weight else None  # (F/t, D)
        d_bias = dy.flatten(0, -2).sum(0) if need_bias else None
        return adding_up() if need_x else None, d_weight, d_bias, None
