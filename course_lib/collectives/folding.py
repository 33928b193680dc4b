"""Any number of ranks for an all-reduce among a power of two of them: fold in, fold out.

    n = 6, p = 4      in: 4 -> 0, 5 -> 1      all-reduce among 0 to 3      out: 0 -> 4, 1 -> 5

The ranks above the largest power of two p hand their tensor to a partner first, wait, and get the result in the end:
one message of M more on the way in and one on the way out.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.messages import in_place
from course_lib.collectives.reduction import check, combine
from course_lib.costs.links import largest_power_of_two
from course_lib.groups.membership import Member, member

AmongFirst = Callable[[Tensor, ReduceOp.RedOpType, Member, int], None]  # (flat (N,), op, me, p): the first p places


def folded_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType, group: ProcessGroup | None,
                      among_first: AmongFirst) -> None:
    """All-reduce `tensor` in place over any n ranks by `among_first`, which takes a power of two of them."""
    check(op, tensor)
    me = member(group)
    p = largest_power_of_two(me.n)
    with in_place(tensor, me) as flat:  # (N,)
        # These ranks sit out: pairs at distance 1, 2, 4 ... leave nobody over only among a power of two.
        if me.r >= p:
            me.send(flat, to=me.r - p)
            me.receive(flat, source=me.r - p)
            return
        if me.r + p < me.n:
            combine(op, flat, me.receive(torch.empty_like(flat), source=me.r + p))
        among_first(flat, op, me, p)
        if me.r + p < me.n:
            me.send(flat, to=me.r + p)
