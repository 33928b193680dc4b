"""Ring attention: queries stay, keys and values go around, and no rank ever holds the whole row.

    B rows      H query heads, K key heads, G = H/K      R ranks, r this one      T/R tokens on each      d head size

R steps; in step i rank r computes with the block of rank r - i, while that of rank r - i - 1 is on its way to it. The
online softmax adds the blocks up exactly. Backward they go around again, and behind each the sum of its gradients,
from the rank that used it first to the one that used it last, and home.

    sent by a rank, M = 2 B K T/R d numbers:   forward (R-1) M      backward 2 (R-1) M      memory of a rank O(T/R)

The online softmax is attention to keys that come block by block, put right whenever more of them arrive:

    m (..., 1)  the largest score so far     l (..., 1)  the sum of exp(score - m)     o (..., d)  that of exp() v

softmax(scores) v is o/l. A new block changes m, and what was added up before shrinks by exp(m_old - m_new): nothing is
approximated, in whatever order blocks come. FlashAttention does this with blocks that fit into a GPU's fast memory,
ring attention with blocks that lie on other ranks. Here the queries are cut, too, into tiles of TILE_ROWS rows, so that
there is never a T x S matrix. Positions ascend within a block, so what the rows of a tile may read are its first keys:
the mask skips the others, and hides a few of the rest.

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; Brandon et al. 2023,
"Striped Attention", for the layouts; Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et
al. 2022, "FlashAttention", algorithms 1 and 4.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.groups.membership import Group, Member, describe, member, sendable
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
        softmax = OnlineSoftmax(group_heads(q, k, scaled=True))  # q (B, K, G, T/R, d)
        for block in circulate(k, v, positions, causal, me):
            softmax.add(block)
        out, lse = softmax.result()  # (B, K, G, T/R, d), (B, K, G, T/R, 1)
        out = out.flatten(1, 2).to(q.dtype)  # (B, H, T/R, d)
        # Nothing of any block: with lse, each block's weights can be made again without the other blocks.
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.positions, ctx.causal, ctx.me = positions, causal, me
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v, out, lse), me = ctx.saved_tensors, ctx.me
        scaled, d_out, out = group_heads(q, k, scaled=True), group_heads(d_out, k), group_heads(out, k)
        delta = (d_out * out).sum(-1, keepdim=True)  # (B, K, G, T/R, 1)
        dq, arriving = torch.zeros_like(scaled), None
        for step, block in enumerate(circulate(k, v, ctx.positions, ctx.causal, me)):
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


def circulate(k: Tensor, v: Tensor, positions: tuple[Tensor, ...], causal: bool, me: Member) -> Iterator["KeyBlock"]:
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


def group_heads(x: Tensor, k: Tensor, scaled: bool = False) -> Tensor:
    """(B, H, T/R, d) -> (B, K, H/K, T/R, d), to compute with: in 32 bits at least."""
    x = x.to(accumulation(x.dtype)).unflatten(1, (k.shape[1], -1))
    return x * x.shape[-1] ** -0.5 if scaled else x


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which blocks are added up: 32 bits, or 64 where the numbers have them."""
    return torch.promote_types(dtype, torch.float32)


# The online softmax

TILE_ROWS = 128  # what they take is TILE_ROWS x S scores a head: linear in the tokens of a block


@dataclass(frozen=True)
class Tile:
    """Some rows of queries, and the first keys that they read: all rows read `num_open`, some `num_keys`."""

    rows: slice
    num_keys: int
    num_open: int


def cut_tiles(queries: Tensor, keys: Tensor, causal: bool) -> list[Tile]:
    """The tiles that have something to read. queries (T,), keys (S,): their positions, ascending, on the CPU."""
    T, found = len(queries), []
    half = -(-T // 2)  # no tile spans the two pieces of a zigzag
    for start, stop in ((0, half), (half, T)):
        for first in range(start, stop, TILE_ROWS):
            rows = slice(first, min(first + TILE_ROWS, stop))
            num_open = num_keys = len(keys)
            if causal:
                ends = queries[[rows.start, rows.stop - 1]]
                num_open, num_keys = torch.searchsorted(keys, ends, right=True).tolist()
            if num_keys:
                found.append(Tile(rows, num_keys, num_open))
    return found


@dataclass(frozen=True)
class KeyBlock:
    """Keys and values of one rank, (B, K, S, d) each, and how this rank's queries, at `queries` (T,), read them."""

    k: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor
    causal: bool

    def tiles(self) -> list[Tile]:
        """The tiles of the block that have something to read."""
        return cut_tiles(self.queries, self.keys, self.causal)

    def scores(self, q: Tensor, tile: Tile) -> Tensor:
        """(B, K, G, t, num_keys) of the rows of a tile, -inf where the mask hides. q (B, K, G, T, d), scaled."""
        rows = q[..., tile.rows, :]
        scores = (rows.flatten(2, 3) @ self.k[:, :, :tile.num_keys].mT).unflatten(2, rows.shape[2:4])
        if tile.num_open < tile.num_keys:
            later = self.keys[tile.num_open:tile.num_keys] > self.queries[tile.rows, None]
            scores[..., tile.num_open:].masked_fill_(later.to(scores.device), float("-inf"))
        return scores


class OnlineSoftmax:
    """m, l and o of queries q (B, K, G, T, d), which are scaled; `add` blocks, then ask for the `result`.

    Every query reads something in the first block, itself: m is finite from then on.
    """

    def __init__(self, q: Tensor) -> None:
        self.q = q
        self.m = q.new_full((*q.shape[:-1], 1), float("-inf"))
        self.l = torch.zeros_like(self.m)
        self.o = torch.zeros_like(q)

    def add(self, block: KeyBlock) -> None:
        for tile in block.tiles():
            scores = block.scores(self.q, tile)  # (B, K, G, t, num_keys)
            m, l, o = (state[..., tile.rows, :] for state in (self.m, self.l, self.o))
            # exp of a score less the largest so far: never above 1, however large scores become.
            m_new = torch.maximum(m, scores.amax(-1, keepdim=True))
            weights, shrink = scores.sub_(m_new).exp_(), (m - m_new).exp_()
            l.mul_(shrink).add_(weights.sum(-1, keepdim=True))
            # What was added up under the old maximum is put under the new one. In the end o/l depends on none of them.
            o.mul_(shrink).add_(mix(weights, block.v[:, :, :tile.num_keys]))
            m.copy_(m_new)

    def result(self) -> tuple[Tensor, Tensor]:
        """softmax v (B, K, G, T, d), and log(sum of exp(score)) (B, K, G, T, 1), from which backward has every weight.
        """
        return self.o.div_(self.l), self.m.add_(self.l.log())


def mix(weights: Tensor, v: Tensor) -> Tensor:
    """weights (B, K, G, t, n), v (B, K, n, d) -> (B, K, G, t, d): one product for all G heads that share v."""
    return (weights.flatten(2, 3) @ v).unflatten(2, weights.shape[2:4])


def add_gradients(block: KeyBlock, q: Tensor, lse: Tensor, d_out: Tensor, delta: Tensor, dq: Tensor, dk: Tensor,
                  dv: Tensor) -> None:
    """What this block adds to dq (B, K, G, T, d), of the scaled q, and to its own dk and dv (B, K, S, d).

    lse and delta (B, K, G, T, 1) are what backward has to know of all other blocks. delta is the mean of dP = dO V^T
    by the weights of the whole row; out being that mean of V, it is the sum of d_out * out over d.
    """
    for tile in block.tiles():
        k, v = (part[:, :, :tile.num_keys] for part in (block.k, block.v))
        q_rows, d_rows = (rows[..., tile.rows, :].flatten(2, 3) for rows in (q, d_out))  # (B, K, G t, d)
        # P = exp(S - lse), the final weights at once: lse is complete, whichever block is looked at.
        weights = block.scores(q, tile).sub_(lse[..., tile.rows, :]).exp_()  # (B, K, G, t, num_keys)
        # dS = P * (dP - delta), dP = dO V^T: weights add up to 1, so only what lies above the mean of dP counts.
        d_scores = (d_rows @ v.mT).view_as(weights).sub_(delta[..., tile.rows, :]).mul_(weights)
        dv[:, :, :tile.num_keys] += weights.flatten(2, 3).mT @ d_rows  # P^T dO, summed over the G heads that share v
        dq[..., tile.rows, :] += mix(d_scores, k)  # dS K
        dk[:, :, :tile.num_keys] += d_scores.flatten(2, 3).mT @ q_rows  # dS^T Q


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
