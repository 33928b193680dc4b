"""Ring attention: queries stay, keys and values go around, and no rank ever holds the whole row.

    B rows      H query heads, K key heads      R ranks, r this one      T/R tokens on each      d head size

R steps; in step i rank r computes with the block of rank r - i, while that of rank r - i - 1 is on its way to it. The
online softmax adds the blocks up exactly. Backward they go around again, and behind each the sum of its gradients,
from the rank that used it first to the one that used it last, and home.

    sent by a rank, M = 2 B K T/R d numbers:   forward (R-1) M      backward 2 (R-1) M      memory of a rank O(T/R)

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; Brandon et al. 2023,
"Striped Attention", for the layouts.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.groups.membership import Group, Member, member
from course_lib.groups.tensors import sendable
from course_lib.sequence_parallel.checks import require_attention, without_autocast
from course_lib.sequence_parallel.layouts import layout_order
from course_lib.sequence_parallel.tiles import KeyBlock, OnlineSoftmax, add_gradients


def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Group = None, causal: bool = True,
                   layout: str = "zigzag") -> Tensor:
    """softmax(q k^T / sqrt(d)) v of this rank's queries and everybody's keys. Returns (B, H, T/R, d).

    q (B, H, T/R, d), k and v (B, K, T/R, d): this rank's tokens, dealt out as `layout` says; query head i reads key
    head i // (H/K). All ranks bring the same shapes. ValueError for shapes that do not fit together or the layout.
    """
    me = member(group)
    require_attention(q, k, v)
    positions = layout_order(me.n * q.shape[2], me.n, layout if causal else "contiguous").chunk(me.n)
    with without_autocast(q, k, v) as (q, k, v):
        return RingAttention.apply(q, k, v, positions, causal, me)


class RingAttention(torch.autograd.Function):
    """Attention of this rank's queries to all keys, whose blocks go around; backward they go around once more."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, positions: tuple[Tensor, ...], causal: bool,
                me: Member) -> Tensor:
        softmax = OnlineSoftmax(by_key_head(q, k, scaled=True))  # q (B, K, G, T/R, d)
        for block in around(k, v, positions, causal, me):
            softmax.add(block)
        out, lse = softmax.result()
        out = out.flatten(1, 2).to(q.dtype)  # (B, H, T/R, d)
        # Nothing of any block: with lse, each block's weights can be made again without the other blocks.
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.positions, ctx.causal, ctx.me = positions, causal, me
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, lse), me = ctx.saved_tensors, ctx.me
        scaled, d_out, out = by_key_head(q, k, scaled=True), by_key_head(d_out, k), by_key_head(out, k)
        delta = (d_out * out).sum(-1, keepdim=True)  # (B, K, G, T/R, 1)
        dq, arriving = torch.zeros_like(scaled), None
        for step, block in enumerate(around(k, v, ctx.positions, ctx.causal, me)):
            # What this rank's queries say of the block's k and v, added up in 32 bits at least
            d_block = torch.zeros((2, *k.shape), dtype=dq.dtype, device=k.device)  # (2, B, K, T/R, d)
            add_gradients(block, scaled, lse, d_out, delta, dq, *d_block)
            if step == 0:
                d_own = d_block  # of its own block: it waits here until the sum of all others comes home
                continue
            if arriving:
                d_block += arriving().to(k.device)  # from the left neighbour, who used this block a step ago
            arriving = start_shift(sendable(d_block, me), me)  # behind the block, while the next one is used
        if arriving:
            d_own += arriving().to(k.device)  # home: the left neighbour was the last to use this rank's block
        dk, dv = d_own.to(k.dtype)
        return dq.flatten(1, 2).mul_(q.shape[-1] ** -0.5).to(q.dtype), dk, dv, None, None, None


def around(k: Tensor, v: Tensor, positions: tuple[Tensor, ...], causal: bool, me: Member) -> Iterator[KeyBlock]:
    """The keys and values of all ranks, this one's first, then its left neighbour's, and so on.

    While one block is being used, the next is on its way.
    """
    block = sendable(torch.stack([k, v]), me)  # (2, B, K, T/R, d)
    for step in range(me.n):
        arriving = start_shift(block, me) if step < me.n - 1 else None
        source = (me.r - step) % me.n  # whose block it is: it has come `step` ranks to the right
        yield KeyBlock(*block.to(k.device, accumulation(k.dtype)), positions[me.r], positions[source], causal)
        block = arriving() if arriving else None


def start_shift(block: Tensor, me: Member) -> Callable[[], Tensor]:
    """Begin to send `block` to the right neighbour. The function returned waits for the left one's."""
    return me.start_exchange(block, (me.r + 1) % me.n, torch.empty_like(block), (me.r - 1) % me.n)


def by_key_head(x: Tensor, k: Tensor, scaled: bool = False) -> Tensor:
    """(B, H, T/R, d) -> (B, K, H/K, T/R, d), to compute with: in 32 bits at least."""
    x = x.to(accumulation(x.dtype)).unflatten(1, (k.shape[1], -1))
    return x * x.shape[-1] ** -0.5 if scaled else x


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are added up: 32 bits, or 64 where the numbers have them."""
    return torch.promote_types(dtype, torch.float32)
