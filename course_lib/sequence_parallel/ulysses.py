"""Ulysses: trade tokens for heads before attention, and back after it, so that each rank sees whole rows of some heads.

    B rows      H query heads, K key heads      R ranks      T tokens in a row      d head size

    q, k, v   (B, H, T/R, d)  ->  all-to-all  ->  (B, H/R, T, d)
    result    (B, H, T/R, d)  <-  all-to-all  <-  (B, H/R, T, d), by any attention there is

Each all-to-all sends (R-1)/R of a rank's share, T/R of a row: what a rank sends falls with R, where a ring's does not.
But there are at most H ranks, and nothing is sent while something is computed. Key heads that are too few for the ranks
are repeated before they are sent. With a ring around it, R is no longer bound by H.

Sources: Jacobs et al. 2023, "DeepSpeed Ulysses"; Fang and Zhao 2024, "USP: A Unified Sequence Parallelism Approach for
Long Context Generative AI", for both together.
"""

from functools import partial

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_lib.collectives import all_to_all_along
from course_lib.costs.splitting import ulysses_key_heads
from course_lib.groups.membership import Group, Member, member
from course_lib.sequence_parallel.layouts import Attention
from course_lib.sequence_parallel.ring import require_attention, ring_attention, without_autocast


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, group: Group = None, causal: bool = True) -> Tensor:
    """softmax(q k^T / sqrt(d)) v of this rank's queries and everybody's keys. Returns (B, H, T/R, d).

    q (B, H, T/R, d), k and v (B, K, T/R, d): tokens r T/R to (r+1) T/R - 1; query head i reads key head i // (H/K).
    ValueError where R does not divide H, or shapes do not fit together.
    """
    return attend_by_heads(partial(attend_to_rows, causal=causal), q, k, v, member(group))


def ulysses_ring_attention(q: Tensor, k: Tensor, v: Tensor, ulysses_group: Group, ring_group: Group,
                           causal: bool = True, layout: str = "zigzag") -> Tensor:
    """Attention on U x R ranks: all-to-all among U of them, then a ring of R ranks for each part of the heads.

    q (B, H, T/(U R), d): `layout` deals the tokens to the R ranks of a ring, and each share is cut contiguously over
    the U ranks of its Ulysses group: local_positions(T, ring_group, layout, ulysses_group). U has to divide H.
    """
    around = partial(ring_attention, group=ring_group, causal=causal, layout=layout)
    return attend_by_heads(around, q, k, v, member(ulysses_group))


def attend_by_heads(attend: Attention, q: Tensor, k: Tensor, v: Tensor, me: Member) -> Tensor:
    """attend(q, k, v) by heads: tokens come, heads go, and back."""
    require_attention(q, k, v)
    with without_autocast(q, k, v) as (q, k, v):
        repeats = ulysses_key_heads(q.shape[1], k.shape[1], me.n) // k.shape[1]
        # Before they are sent: ranks that share a key head need it each, and an all-to-all gives equal parts.
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v)) if repeats > 1 else (k, v)
        q, k, v = (all_to_all_along(x, split_dim=1, concat_dim=2, group=me) for x in (q, k, v))  # (B, H/R, T, d)
        return all_to_all_along(attend(q, k, v), split_dim=2, concat_dim=1, group=me)  # (B, H, T/R, d)


def attend_to_rows(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention of q (B, H, T, d) to k and v (B, K, T, d), each key head serving H/K query heads."""
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
