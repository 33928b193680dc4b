"""Which rank holds which tokens, where each of them stands in the whole row, and the way back.

    T tokens in a row      R ranks, r this one      order (T,): rank r holds the tokens order.chunk(R)[r]

A token's position is its place in the whole row, whoever holds it: rotary or learned positions and the causal mask need
that number, never the place among the tokens of a rank. `x[:, local_positions(T)]` deals out, `gather_tokens` undoes.
"""

import torch
from torch import Tensor

from course_lib.collectives import gather_from_group
from course_lib.collectives.differentiable import dim_of
from course_lib.costs.context_parallel import tokens_per_rank
from course_lib.groups.membership import Group, member


def layout_order(num_tokens: int, world_size: int, layout: str) -> Tensor:
    """The order (T,) in which tokens are dealt: the first T/R are rank 0's. On the CPU; ascending within a rank.

    ValueError for an unknown layout, and unless R (zigzag: 2R) divides T.

    >>> layout_order(8, world_size=2, layout="zigzag").tolist()  # rank 0 has the first and the last quarter
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    T, R = num_tokens, world_size
    tokens_per_rank(T, R, layout)
    tokens = torch.arange(T, device="cpu")
    if layout == "contiguous":
        return tokens
    if layout == "striped":
        return tokens.view(-1, R).T.flatten()  # r, r + R, r + 2R, ...
    pieces = tokens.view(2 * R, -1)
    return torch.stack([pieces[:R], pieces[R:].flip(0)], dim=1).flatten()  # pieces r and 2R-1-r


def local_positions(num_tokens: int, group: Group = None, layout: str = "zigzag",
                    ulysses_group: Group = None) -> Tensor:
    """Where this rank's tokens (T/R,) stand in the row. On the CPU.

    ulysses_group: the share of each rank of `group` is cut contiguously over it, as ulysses_ring_attention wants it.
    """
    me = member(group)
    share = layout_order(num_tokens, me.n, layout).chunk(me.n)[me.r]
    if ulysses_group is None:
        return share
    within = member(ulysses_group)
    if len(share) % within.n:
        raise ValueError(f"{len(share)} tokens of a rank of the ring: expected a number that the {within.n} ranks of "
                         "the Ulysses group divide")
    return share.chunk(within.n)[within.r]


def restore_order(x: Tensor, dim: int, world_size: int, layout: str = "zigzag") -> Tensor:
    """`x`, whose tokens stand along `dim` in the order of the layout, in the order of the row."""
    dim = dim_of(x, dim, "dim")
    order = layout_order(x.shape[dim], world_size, layout)
    # argsort of a permutation is its inverse: where each token of the row stands now.
    return x.index_select(dim, order.argsort().to(x.device))


def gather_tokens(x: Tensor, dim: int, group: Group = None, layout: str = "zigzag") -> Tensor:
    """All ranks' tokens of `x` (..., T/R, ...) along `dim`, in the order of the row (..., T, ...), on every rank.

    Gradients pass, for a result that all ranks use alike: each gets those of its own tokens.
    """
    me = member(group)
    return restore_order(gather_from_group(x, dim, me), dim, me.n, layout)
