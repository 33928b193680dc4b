"""A cut: which slice of an unsplit parameter a rank holds, and the unsplit parameter from all slices.

    t ranks, r this one      N  the size along the dimension that is cut

A fused matrix holds several after each other, q | k | v or gate | up say. Each of them is a section, cut on its own:
rank r holds the r-th part of q, then of k, then of v. Plain slices of N/t rows would give rank 0 of 3 all of q.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.collectives.differentiable import start_all_gather_along
from course_lib.groups.membership import Member


@dataclass(frozen=True)
class Cut:
    """Along `dim`, `sections` of these sizes after each other, each dealt out in t equal parts."""

    dim: int
    sections: tuple[int, ...]

    def take(self, whole: Tensor, me: Member) -> Tensor:
        """This rank's slice of `whole` (..., N, ...): (..., N/t, ...), in memory of its own."""
        # Section by section: a plain t-th of q | k | v would be heads of q alone.
        parts = [section.chunk(me.n, self.dim)[me.r] for section in whole.split(self.sections, self.dim)]
        return torch.cat(parts, self.dim)

    def join(self, mine: Tensor, me: Member) -> Tensor:
        """The whole (..., N, ...) of which the ranks hold `mine` (..., N/t, ...). Collective."""
        slices = start_all_gather_along(mine, self.dim, me)().chunk(me.n, self.dim)
        parts = [one.split([size // me.n for size in self.sections], self.dim) for one in slices]
        # The whole has all ranks' parts of the first section, then all of the second.
        return torch.cat([part for section in zip(*parts) for part in section], self.dim)


def cut_evenly(size: int, dim: int, me: Member, what: str, sections: Sequence[int] | None = None, unit: int = 1) -> Cut:
    """The Cut of `size` along `dim`; ValueError, about `what`, where t does not divide.

    sections: sizes that add up to `size`; None is one. unit: what stays together, the rows of one head say.
    """
    sections = (size,) if sections is None else tuple(sections)
    if sum(sections) != size or min(sections) < 1:
        raise ValueError(f"sections={list(sections)} of {what}, which are {size}: expected sizes that add up to {size}")
    for section in sections:
        if section % (unit * me.n):
            pieces = f"{section} {what}" if unit == 1 else f"{section / unit:g} times {unit} {what}"
            raise ValueError(f"{pieces} over {me.n} ranks: expected a number that {me.n} divides")
    return Cut(dim, sections)


def qkv_sections(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[int, int, int]:
    """The rows of q, k and v in one fused matrix. Heads of k and v may be fewer: grouped queries.

    >>> qkv_sections(num_heads=32, num_kv_heads=8, head_dim=128)
    (4096, 1024, 1024)
    """
    return num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim


def heads_per_rank(num_heads: int, num_kv_heads: int, me: Member) -> tuple[int, int]:
    """How many heads of q, and of k and v, a rank has. ValueError where t does not divide both.

    Query head i reads key head i // (heads / kv_heads), so with both dealt in order each rank has all it needs.
    """
    require_whole_heads(num_heads, "heads", me)
    require_whole_heads(num_kv_heads, "key and value heads", me)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads share {num_kv_heads} key and value heads: expected a multiple")
    return num_heads // me.n, num_kv_heads // me.n


def require_whole_heads(count: int, what: str, me: Member) -> None:
    """ValueError where the ranks do not divide `count` heads."""
    if count % me.n:
        raise ValueError(f"{count} {what} over {me.n} ranks: expected a number that {me.n} divides, since a head stays "
                         "on one rank")
