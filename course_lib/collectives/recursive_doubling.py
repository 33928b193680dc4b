"""All-reduce in log2 n steps, for short messages: in each step partners exchange all that they have.

    n = 4      step 1: 0 <-> 1, 2 <-> 3      step 2: 0 <-> 2, 1 <-> 3

After a step twice as many ranks' tensors are added up in each place. Half the steps of halving-doubling, whose messages
get shorter instead: what a step costs before the first byte counts here.

    steps log2 n (halving-doubling: 2 log2 n)      bytes log2 n M (halving-doubling: 2 (n-1)/n M)

n that is no power of two: see folding.py.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.folding import folded_all_reduce
from course_lib.collectives.reduction import COMBINE, finish
from course_lib.costs.links import powers_of_two_below
from course_lib.groups.membership import Member


def recursive_doubling_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM,
                                  group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place. Any n; with a power of two of ranks each sends log2 n M bytes."""
    folded_all_reduce(tensor, op, group, exchange_all)


def exchange_all(flat: Tensor, op: ReduceOp.RedOpType, me: Member, p: int) -> None:
    """All-reduce `flat` (N,) among the first p places, p a power of two."""
    # One buffer for all steps: what came is added into `flat` before the next message.
    received = torch.empty_like(flat)
    for distance in powers_of_two_below(p):
        partner = me.r ^ distance
        me.exchange(flat, partner, received, partner)
        # Everybody reduces everything, and all have to get the same bits. a + b is b + a, but of 0 and -0 the maximum
        # is the first, and of two NaN the sum is the second: so both partners begin with the lower place's.
        low, high = (received, flat) if me.r & distance else (flat, received)
        COMBINE[op](low, high, out=flat)
    finish(op, flat, me.n)
