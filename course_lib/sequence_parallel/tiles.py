"""Attention to keys that come block by block: the softmax is put right whenever more of them arrive.

    B rows      K key heads      G query heads for each of them      T queries, S keys of a block      d head size
    m (..., 1)  the largest score so far     l (..., 1)  the sum of exp(score - m)     o (..., d)  that of exp() v

softmax(scores) v is o/l. A new block changes m, and what was added up before shrinks by exp(m_old - m_new): nothing is
approximated, in whatever order blocks come. FlashAttention does this with blocks that fit into a GPU's fast memory,
ring attention with blocks that lie on other ranks. Here the queries are cut, too, into tiles of TILE_ROWS rows, so that
there is never a T x S matrix. Positions ascend within a block, so what the rows of a tile may read are its first keys:
the mask skips the others, and hides a few of the rest.

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention",
algorithms 1 and 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
