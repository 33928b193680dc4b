"""Through one rank: gather, scatter, and the all-reduce that everybody writes first.

M bytes, n ranks: in naive_all_reduce the root receives (n-1) M and sends (n-1) M while the others wait for it. The cost
grows with n, and the links between the others are idle. That is what the ring repairs.

A different piece for everyone: rank r's j-th piece becomes rank j's r-th.

n-1 steps; in step s each rank sends to the place s further on and receives from the place s further back, so that in
every step each rank sends once and receives once, and nobody is a bottleneck.
Source: Thakur, Rabenseifner and Gropp 2005.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.messages import check, combine, finish, in_place, output, require_rows
from course_lib.groups.membership import Member, member, sendable


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


def pairwise_all_to_all(tensor: Tensor, output_split_sizes: Sequence[int] | None = None,
                        input_split_sizes: Sequence[int] | None = None, group: ProcessGroup | None = None,
                        out: Tensor | None = None) -> Tensor:
    """Send piece j of `tensor` to place j, and return the pieces received, in the order of their senders.

    tensor (N0, ...) is cut along dim 0 into rows of input_split_sizes, and output_split_sizes rows arrive. Give both
    or neither; neither: all ranks bring the same shape, cut as torch.tensor_split does. Everything is sent but the
    piece that stays. ValueError for sizes that do not add up.
    """
    me = member(group)
    require_rows(tensor)
    sizes_out, sizes_in = split_sizes(tensor, output_split_sizes, input_split_sizes, me)
    shape = (sum(sizes_out), *tensor.shape[1:])
    out = output(out, shape, tensor)
    with in_place(out, me) as flat:
        outgoing = sendable(tensor, me).split(sizes_in)
        incoming = flat.view(shape).split(sizes_out)
        # The piece that stays needs no message.
        incoming[me.r].copy_(outgoing[me.r])
        # In each step everybody sends to another rank: with a fixed order of receivers, all would send to place 0
        # first.
        for step in range(1, me.n):
            to, source = (me.r + step) % me.n, (me.r - step) % me.n
            me.exchange(outgoing[to], to, incoming[source], source)
    return out


def split_sizes(tensor: Tensor, outputs: Sequence[int] | None, inputs: Sequence[int] | None,
                me: Member) -> tuple[list[int], list[int]]:
    """Rows that arrive from each place and rows that go to each place."""
    if outputs is None and inputs is None:
        inputs = [len(piece) for piece in tensor.tensor_split(me.n)]
        # All ranks bring the same shape, so everybody's piece for this rank is as long as its own.
        return [inputs[me.r]] * me.n, inputs
    if outputs is None or inputs is None:
        raise ValueError("only one of output_split_sizes and input_split_sizes is given: expected both or neither")
    outputs, inputs = list(outputs), list(inputs)
    for name, sizes in (("output_split_sizes", outputs), ("input_split_sizes", inputs)):
        if len(sizes) != me.n or min(sizes) < 0:
            raise ValueError(f"{name}={sizes}: expected {me.n} sizes of 0 or more, one for each rank of the group")
    if sum(inputs) != len(tensor):
        raise ValueError(f"input_split_sizes={inputs} add up to {sum(inputs)}: expected the {len(tensor)} rows "
                         "of the tensor")
    # The one pair of sizes that a rank can compare alone: what the others send, only they know.
    if inputs[me.r] != outputs[me.r]:
        raise ValueError(f"place {me.r} keeps {inputs[me.r]} rows by input_split_sizes and {outputs[me.r]} "
                         "by output_split_sizes: expected the same number")
    return outputs, inputs
