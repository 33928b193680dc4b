"""A binomial tree: in each step everyone who knows tells one who does not, so the number who know doubles.

    n = 8, from place 0      step 1: 0 -> 1      step 2: 0 -> 2, 1 -> 3      step 3: 0 -> 4, 1 -> 5, 2 -> 6, 3 -> 7

ceil(log2 n) steps, against n-1 around a ring: the choice for short messages. Each step moves the whole message M:
the ring's choice for long ones. A reduction is the same tree run backwards.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_global_rank

from course_lib.collectives.messages import in_place
from course_lib.collectives.reduction import check, combine, finish
from course_lib.costs.links import powers_of_two_below
from course_lib.groups.membership import member


def tree_broadcast(tensor: Tensor, src: int = 0, group: ProcessGroup | None = None) -> None:
    """Give every rank the `tensor` of the global rank `src`, in place; it has the same size everywhere.

    A rank sends M bytes to each of its children; together they send (n-1) M.
    """
    me = member(group)
    root = me.place_of(src, "src")
    v = (me.r - root) % me.n  # the tree is drawn with the root at 0, then turned
    with in_place(tensor, me) as flat:
        for know in powers_of_two_below(me.n):
            if v < know and v + know < me.n:
                me.send(flat, to=(me.r + know) % me.n)
            # The bits of v are the path from the root: whoever has the highest bit `know` is told in this step, and by
            # v - know.
            elif know <= v < 2 * know:
                me.receive(flat, source=(me.r - know) % me.n)


def tree_reduce(tensor: Tensor, dst: int = 0, op: ReduceOp.RedOpType = ReduceOp.SUM,
                group: ProcessGroup | None = None) -> None:
    """Reduce `tensor` onto the global rank `dst`, in place. Elsewhere it is left with a partial result.

    Every rank but dst sends M bytes, once.
    """
    check(op, tensor)
    me = member(group)
    root = me.place_of(dst, "dst")
    # As seen from the root, which is then place 0 of the tree.
    v = (me.r - root) % me.n
    with in_place(tensor, me) as flat:
        received = torch.empty_like(flat)
        # The broadcast's messages backwards: whoever was told first waits longest, and so has most to add.
        for know in reversed(powers_of_two_below(me.n)):
            if v < know and v + know < me.n:
                combine(op, flat, me.receive(received, source=(me.r + know) % me.n))
            elif know <= v < 2 * know:
                me.send(flat, to=(me.r - know) % me.n)
        if v == 0:
            finish(op, flat, me.n)


def tree_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place: up the tree to place 0, and down again. Together the ranks send 2(n-1) M bytes."""
    me = member(group)
    # Any root will do, since all get the result; place 0 is the one that every rank of the group knows.
    root = get_global_rank(me.group, 0)
    tree_reduce(tensor, root, op, group)
    tree_broadcast(tensor, root, group)
