"""All-reduce in 2 log2 n steps without sending more than the ring: recursive halving, then recursive doubling.

Halving: partners exchange halves of what they still work on; each reduces the half that it keeps. After log2 n steps
a rank holds 1/n of the result. Doubling: the same exchanges backwards, now with finished pieces.

    steps 2 log2 n (ring: 2(n-1))      bytes 2 (n-1)/n M (ring: the same)

n that is no power of two: see folding.py.
Source: Rabenseifner 2004, "Optimization of collective reduction operations", as in Thakur et al. 2005.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.folding import folded_all_reduce
from course_lib.collectives.reduction import combine, finish
from course_lib.costs.links import powers_of_two_below
from course_lib.groups.membership import Member


def halving_doubling_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM,
                                group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place. Any n; with a power of two of ranks each sends 2 (n-1)/n M bytes."""
    folded_all_reduce(tensor, op, group, halve_and_double)


def halve_and_double(flat: Tensor, op: ReduceOp.RedOpType, me: Member, p: int) -> None:
    """All-reduce `flat` (N,) among the first p places, p a power of two."""
    region, steps = flat, []
    for distance in powers_of_two_below(p):  # nearest first: the longest messages travel least
        partner = me.r ^ distance
        low, high = region.tensor_split(2)
        mine, theirs = (high, low) if me.r & distance else (low, high)
        received = me.exchange(theirs, partner, torch.empty_like(mine), partner)
        # From here on only `mine` is worked on: messages get half as long with each step.
        region = combine(op, mine, received)
        steps.append((partner, mine, theirs))
    finish(op, region, me.n)
    # The same pairs backwards. `theirs` is where the partner's finished half belongs, so it is received in place.
    for partner, mine, theirs in reversed(steps):
        me.exchange(mine, partner, theirs, partner)
