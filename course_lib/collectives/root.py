"""Through one rank: gather, scatter, and the all-reduce that everybody writes first.

M bytes, n ranks: in naive_all_reduce the root receives (n-1) M and sends (n-1) M while the others wait for it. The cost
grows with n, and the links between the others are idle. That is what the ring repairs.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.messages import in_place, output
from course_lib.collectives.reduction import check, combine, finish
from course_lib.groups.membership import member
from course_lib.groups.tensors import sendable


def naive_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place: everyone sends it to place 0, which reduces and sends the result back.

    Place 0 sends (n-1) M bytes, each other place M.
    """
    check(op, tensor)
    me = member(group)
    with in_place(tensor, me) as flat:  # (N,)
        if me.r > 0:
            me.send(flat, to=0)
            me.receive(flat, source=0)
            return
        received = torch.empty_like(flat)
        # In one order, whoever is ready first: floating-point sums depend on the order.
        for other in range(1, me.n):
            combine(op, flat, me.receive(received, source=other))
        finish(op, flat, me.n)
        for other in range(1, me.n):
            me.send(flat, to=other)


def gather(tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0,
           group: ProcessGroup | None = None) -> list[Tensor] | None:
    """Collect every rank's `tensor` on the global rank `dst`, in group order; all have the same shape.

    Rank dst fills gather_list, or without one makes it, and returns it. The others return None. Everyone but dst sends
    M bytes. ValueError for a gather_list that does not fit, or that is given on another rank.
    """
    me = member(group)
    root = me.place_of(dst, "dst")
    own = sendable(tensor, me)
    if me.r != root:
        refuse_list(gather_list, "gather_list", "dst", dst)
        me.send(own, to=root)
        return None
    gathered = [None] * me.n if gather_list is None else gather_list
    require_length(gathered, me.n, "gather_list")
    # All are looked at before the first message: a list with a wrong entry is not left half full.
    gathered = [output(part, tensor.shape, tensor) for part in gathered]
    for place, part in enumerate(gathered):
        if place == me.r:
            part.detach().copy_(tensor.detach().view(part.shape))
        else:
            with in_place(part, me) as flat:
                me.receive(flat, source=place)
    return gathered


def scatter(tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0,
            group: ProcessGroup | None = None) -> None:
    """Fill `tensor` on each rank with its entry of scatter_list, which the global rank `src` gives and no other.

    Rank src sends (n-1) M bytes, M being one entry; the others send nothing. ValueError for a scatter_list that is
    missing on src, given elsewhere, or has entries of another size than `tensor`.
    """
    me = member(group)
    root = me.place_of(src, "src")
    if me.r != root:
        refuse_list(scatter_list, "scatter_list", "src", src)
        with in_place(tensor, me) as flat:
            me.receive(flat, source=root)
        return
    require_length(scatter_list or [], me.n, "scatter_list")
    for place, part in enumerate(output(part, tensor.shape, tensor) for part in scatter_list):
        if place == me.r:
            tensor.detach().copy_(part.detach().view(tensor.shape))
        else:
            me.send(sendable(part, me), to=place)


def refuse_list(given: list[Tensor] | None, name: str, end: str, root: int) -> None:
    """ValueError where a rank that is not the root is given a list of tensors."""
    if given:
        raise ValueError(f"{name} given on a rank that is not {end}={root}: expected None there")


def require_length(given: list, n: int, name: str) -> None:
    """ValueError unless the root's list has a tensor for each of the n ranks."""
    if len(given) != n:
        raise ValueError(f"{name} has {len(given)} entries: expected {n}, one for each rank of the group")
