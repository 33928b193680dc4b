"""All-reduce in 2 log2 n steps without sending more than the ring: recursive halving, then recursive doubling.

Halving: partners exchange halves of what they still work on; each reduces the half that it keeps. After log2 n steps
a rank holds 1/n of the result. Doubling: the same exchanges backwards, now with finished pieces.

    steps 2 log2 n (ring: 2(n-1))      bytes 2 (n-1)/n M (ring: the same)

n that is no power of two: the ranks above the largest power p hand their tensor to a partner first, wait, and get the
result in the end: one message of M more on the way in and one on the way out.
Source: Rabenseifner 2004, "Optimization of collective reduction operations", as in Thakur et al. 2005.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.messages import in_place
from course_lib.collectives.reduction import check, combine, finish
from course_lib.costs.links import largest_power_of_two
from course_lib.groups.membership import Member, member


def halving_doubling_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM,
                                group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place. Any n; with a power of two of ranks each sends 2 (n-1)/n M bytes."""
    check(op, tensor)
    me = member(group)
    p = largest_power_of_two(me.n)
    with in_place(tensor, me) as flat:  # (N,)
        if me.r >= p:
            me.send(flat, to=me.r - p)
            me.receive(flat, source=me.r - p)
            return
        if me.r + p < me.n:
            combine(op, flat, me.receive(torch.empty_like(flat), source=me.r + p))
        halve_and_double(flat, op, me, p)
        if me.r + p < me.n:
            me.send(flat, to=me.r + p)


def halve_and_double(flat: Tensor, op: ReduceOp.RedOpType, me: Member, p: int) -> None:
    """All-reduce `flat` (N,) among the first p places, p a power of two."""
    region, steps = flat, []
    for distance in powers_of_two(p):  # nearest first: the longest messages travel least
        partner = me.r ^ distance
        low, high = region.tensor_split(2)
        mine, theirs = (high, low) if me.r & distance else (low, high)
        received = me.exchange(theirs, partner, torch.empty_like(mine), partner)
        region = combine(op, mine, received)
        steps.append((partner, mine, theirs))
    finish(op, region, me.n)
    for partner, mine, theirs in reversed(steps):
        me.exchange(mine, partner, theirs, partner)


def powers_of_two(p: int) -> list[int]:
    """1, 2, 4, ... below p, a power of two itself."""
    return [1 << step for step in range(p.bit_length() - 1)]
