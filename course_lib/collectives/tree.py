"""Few steps, for short messages: what is known, added up or worked on doubles or halves with each step.

    n ranks, p the largest power of two of them      M bytes

                          steps                    bytes that a rank sends
    tree_broadcast        ceil(log2 n)             M to each child            whoever knows tells one who does not
    tree_reduce           ceil(log2 n)             M, once                    the same tree run backwards
    recursive_doubling    log2 n                   log2 n M                   partners exchange all that they have
    halving_doubling      2 log2 n                 2 (n-1)/n M, as the ring   partners exchange halves of what is left

    tree, n = 8, from rank 0     step 1: 0 -> 1     step 2: 0 -> 2, 1 -> 3     step 3: 0 -> 4, 1 -> 5, 2 -> 6, 3 -> 7
    doubling, n = 4              step 1: 0 <-> 1, 2 <-> 3                      step 2: 0 <-> 2, 1 <-> 3
    folding, n = 6, p = 4        in: 4 -> 0, 5 -> 1      all-reduce among 0 to 3      out: 0 -> 4, 1 -> 5

A ring has n-1 steps. Halving-doubling: after log2 n steps a rank holds 1/n of the result, and the same exchanges
backwards hand finished pieces around. Where n is no power of two, both doublings fold: the ranks from p on hand their
tensor to a partner first, wait, and get the result in the end, one message of M more on the way in and on the way out.

Sources: Thakur, Rabenseifner and Gropp 2005; Rabenseifner 2004, "Optimization of collective reduction operations".
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_global_rank

from course_lib.collectives.direct import COMBINE, check, combine, finish, in_place
from course_lib.costs.links import largest_power_of_two, powers_of_two_below
from course_lib.groups.membership import Member, member


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
