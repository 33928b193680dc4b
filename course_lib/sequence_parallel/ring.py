"""Ring attention: queries stay, keys and values go around, and no rank ever holds the whole row.

    B rows      H query heads, K key heads, G = H/K      R ranks, r this one      T/R tokens on each      d head size

R steps; in step i rank r computes with the block of rank r - i, while that of rank r - i - 1 is on its way to it. The
online softmax adds the blocks up exactly. Backward they go around again, and behind each the sum of its gradients,
from the rank that used it first to the one that used it last, and home.

    sent by a rank, M = 2 B K T/R d numbers:   forward (R-1) M      backward 2 (R-1) M      memory of a rank O(T/R)

The online softmax is attention to keys that come block by block, put right whenever more of them arrive:

    o (..., d)  softmax v of the keys so far      lse (..., 1)  log of what that softmax divides by, sum of exp(score)

A block has its own o and lse, from one call of a fused kernel (fused.py). Both sums together are exp(lse) larger, and
each o counts by its share of it: nothing is approximated, in whatever order blocks come. FlashAttention does this with
tiles that fit into a GPU's fast memory, ring attention with blocks that lie on other ranks.

What the causal mask lets through of a block is a rectangle or a triangle in every layout: the kernel is given only the
queries and keys of that.

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; Brandon et al. 2023,
"Striped Attention", for the layouts; Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et
al. 2022, "FlashAttention", algorithms 1 and 4.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import sigmoid

from course_lib.groups.membership import Group, Member, describe, member, sendable
from course_lib.sequence_parallel.fused import accumulation, attend, attend_backward, kernel_dtype
from course_lib.sequence_parallel.layouts import layout_order


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
        softmax = OnlineSoftmax(to_kernel(q))
        for block in circulate(k, v, positions, causal, me):
            softmax.add(block)
        out, lse = softmax.result()  # (B, H, T/R, d), (B, H, T/R, 1)
        # As kernels lay it out, (B, T/R, H, d): heads become one row of a model's numbers again without a copy.
        out = out.transpose(1, 2).to(q.dtype).contiguous().transpose(1, 2)
        # Nothing of any block: with lse, each block's weights can be made again without the other blocks.
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.positions, ctx.causal, ctx.me = positions, causal, me
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, lse), me = ctx.saved_tensors, ctx.me
        row = to_kernel(d_out), to_kernel(q), to_kernel(out), lse
        dq, arriving = torch.zeros(q.shape, dtype=accumulation(q.dtype), device=q.device), None
        for step, block in enumerate(circulate(k, v, ctx.positions, ctx.causal, me)):
            # What this rank's queries say of the block's k and v, added up in 32 bits at least
            d_block = torch.zeros((2, *k.shape), dtype=dq.dtype, device=k.device)  # (2, B, K, T/R, d)
            add_gradients(block, *row, dq, *d_block)
            if step == 0:
                d_own = d_block  # of its own block: it waits here until the sum of all others comes home
                continue
            if arriving:
                d_block += arriving().to(k.device)  # from the left neighbour, who used this block a step ago
            arriving = start_shift(sendable(d_block, me), me)  # behind the block, while the next one is used
        if arriving:
            d_own += arriving().to(k.device)  # home: the left neighbour was the last to use this rank's block
        dk, dv = d_own.to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None, None


def to_kernel(x: Tensor) -> Tensor:
    """`x` as kernels read it: each head's numbers in one piece."""
    x = x.to(kernel_dtype(x))
    return x if x.stride(-1) == 1 else x.contiguous()


def circulate(k: Tensor, v: Tensor, positions: tuple[Tensor, ...], causal: bool, me: Member) -> Iterator["KeyBlock"]:
    """The keys and values of all ranks, this one's first, then its left neighbour's, and so on.

    While one block is being used, the next is on its way.
    """
    block = sendable(torch.stack([k, v]), me)  # (2, B, K, T/R, d)
    for step in range(me.n):
        arriving = start_shift(block, me) if step < me.n - 1 else None
        source = (me.r - step) % me.n  # whose block it is: it has come `step` ranks to the right
        yield KeyBlock(*block.to(k.device, kernel_dtype(k)), positions[me.r], positions[source], causal)
        block = arriving() if arriving else None


def start_shift(block: Tensor, me: Member) -> Callable[[], Tensor]:
    """Begin to send `block` to the right neighbour. The function returned waits for the left one's."""
    return me.start_exchange(block, (me.r + 1) % me.n, torch.empty_like(block), (me.r - 1) % me.n)


# The online softmax

class Part(NamedTuple):
    """Queries and keys of which each query reads all keys; if `causal`, query i only keys 0 to i."""

    rows: slice
    keys: slice
    causal: bool


def visible_part(queries: Tensor, keys: Tensor) -> Part | None:
    """What the causal mask lets through. queries (T,), keys (S,): positions, ascending, on the CPU. None: nothing."""
    seen = torch.searchsorted(keys, queries, right=True)  # (T,): how many keys each query reads, the first ones
    first, T = int((seen == 0).sum()), len(queries)
    if first == T:
        return None
    rows, num_keys = slice(first, T), int(seen[-1])
    if seen[first] == num_keys:
        return Part(rows, slice(0, num_keys), False)
    assert torch.equal(seen[first:], torch.arange(1, T - first + 1, device="cpu")), "positions of no layout"
    return Part(rows, slice(0, num_keys), True)


@dataclass(frozen=True)
class KeyBlock:
    """Keys and values of one rank, (B, K, S, d) each, and how this rank's queries, at `queries` (T,), read them."""

    k: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor
    causal: bool

    def part(self) -> Part | None:
        """What of the block is read."""
        return visible_part(self.queries, self.keys) if self.causal else Part(slice(None), slice(None), False)


class OnlineSoftmax:
    """o and lse of queries q (B, H, T, d); `add` blocks, then ask for the `result`.

    Every query reads something in the first block, itself.
    """

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.o: Tensor | None = None
        self.lse: Tensor | None = None

    def add(self, block: KeyBlock) -> None:
        """`block` is attended to, and merged with the blocks before it."""
        part = block.part()
        if part is None:
            return
        rows, keys, causal = part
        o_new, lse_new = attend(self.q[:, :, rows], block.k[:, :, keys], block.v[:, :, keys], causal)
        if self.o is None:
            # Blocks are added up in 32 bits at least.
            self.o, self.lse = o_new.to(accumulation(o_new.dtype)), lse_new
            return
        o, lse = self.o[:, :, rows], self.lse[:, :, rows]  # (B, H, t, d), (B, H, t, 1)
        # exp(lse_new) / (exp(lse) + exp(lse_new)), the share of the new keys, without an exp that grows large.
        o.lerp_(o_new.to(o.dtype), sigmoid(lse_new - lse))
        lse.copy_(torch.logaddexp(lse, lse_new))

    def result(self) -> tuple[Tensor, Tensor]:
        """softmax v (B, H, T, d), and lse (B, H, T, 1), from which backward has every weight."""
        return self.o, self.lse


def add_gradients(block: KeyBlock, d_out: Tensor, q: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor,
                  dv: Tensor) -> None:
    """What this block adds to dq (B, H, T, d), and to its own dk and dv (B, K, S, d).

    out and lse are those of all blocks: from them the kernel has the final weights exp(score - lse) at once, whichever
    block is looked at.
    """
    part = block.part()
    if part is None:
        return
    rows, keys, causal = part
    of_rows = (x[:, :, rows] for x in (out, lse))
    found = attend_backward(d_out[:, :, rows], q[:, :, rows], block.k[:, :, keys], block.v[:, :, keys], *of_rows,
                            causal)
    for total, found_here in zip((dq[:, :, rows], dk[:, :, keys], dv[:, :, keys]), found):
        total += found_here


# What goes in

def require_attention(q: Tensor, k: Tensor, v: Tensor) -> None:
    """ValueError unless q is (B, H, T, d), and k and v are (B, K, T, d) with H a multiple of K."""
    given = f"q {describe(q)}, k {describe(k)}, v {describe(v)}"
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4 or 0 in q.shape:
        raise ValueError(f"{given}: expected q (batch, heads, tokens, head_dim), and k and v of one such shape")
    (B, H, *rest), (B_k, K, *rest_k) = q.shape, k.shape
    if B != B_k or rest != rest_k:
        raise ValueError(f"{given}: expected the same batch, tokens and head_dim; only heads may differ")
    if K == 0 or H % K:
        raise ValueError(f"{given}: {H} query heads and {K} key heads: expected a multiple")
    if len({(x.dtype, x.device) for x in (q, k, v)}) > 1 or not q.is_floating_point():
        raise ValueError(f"{given}: expected one floating-point dtype and one device")


@contextmanager
def without_autocast(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """Where autocast is on: the tensors in its dtype, as scaled_dot_product_attention would take them, and autocast off
    for what is computed with them, which knows itself what needs 32 bits.
    """
    kind = tensors[0].device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        yield list(tensors)
        return
    dtype = torch.get_autocast_dtype(kind)
    # As torch's own: autocast leaves 64 bits alone.
    cast = [tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors]
    with torch.autocast(kind, enabled=False):
        yield cast
