"""Messages straight to whom they are for: through one root, or from everybody to everybody.

    M  bytes of a tensor      n  ranks

In naive_all_reduce, which everybody writes first, the root receives (n-1) M and sends (n-1) M while the others wait for
it. The cost grows with n, and the links between the others are idle. That is what the ring repairs.

pairwise_all_to_all has a different piece for everyone: rank r's j-th piece becomes rank j's r-th. In step s of n-1 each
rank sends to the one s further on and receives from the one s further back, so that in every step each rank sends once
and receives once, and nobody is a bottleneck. Source: Thakur, Rabenseifner and Gropp 2005.

At the end is what all collectives here, ring.py's and tree.py's too, do with the tensors they are given: `in_place` and
`output` before the first message and after the last, `combine` for two partial results.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.groups.membership import Member, describe, member, sendable


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
    for rank, part in enumerate(gathered):
        if rank == me.r:
            part.detach().copy_(tensor.detach().view(part.shape))
        else:
            with in_place(part, me) as flat:
                me.receive(flat, source=rank)
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
    for rank, part in enumerate(output(part, tensor.shape, tensor) for part in scatter_list):
        if rank == me.r:
            tensor.detach().copy_(part.detach().view(tensor.shape))
        else:
            me.send(sendable(part, me), to=rank)


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


# What collectives do with tensors

# Each computes (a, b) -> out. A NaN on any rank stays NaN, also in MAX and MIN.
COMBINE: dict[ReduceOp.RedOpType, Callable[..., Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,  # a sum, and a division at the end
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
}


def check(op: ReduceOp.RedOpType, tensor: Tensor) -> None:
    """ValueError for an op that is not in COMBINE, or that the dtype of `tensor` does not allow."""
    if not (isinstance(op, ReduceOp.RedOpType) and op in COMBINE):
        raise ValueError(f"unknown op {op!r}: expected ReduceOp.SUM, AVG, MAX or MIN")
    if op == ReduceOp.AVG and not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"ReduceOp.AVG of {tensor.dtype}: expected a floating-point tensor, or ReduceOp.SUM")


def combine(op: ReduceOp.RedOpType, partial: Tensor, received: Tensor) -> Tensor:
    """`partial` takes in what was received, and is returned."""
    return COMBINE[op](partial, received, out=partial)


def finish(op: ReduceOp.RedOpType, total: Tensor, n: int) -> Tensor:
    """`total` over n ranks becomes the result, and is returned: AVG divides, once."""
    # At the end, and not in each step: every division rounds.
    return total.div_(n) if op == ReduceOp.AVG else total


@contextmanager
def in_place(tensor: Tensor, me: Member) -> Iterator[Tensor]:
    """`tensor` of any shape and stride as a flat one (N,) to send and receive into; `tensor` has the result after."""
    flat = sendable(tensor, me).view(-1)
    yield flat
    # `sendable` has made a copy where the tensor is not contiguous, or not where the wire begins.
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def output(out: Tensor | None, shape: Sequence[int], tensor: Tensor) -> Tensor:
    """`out`, or a new tensor of `shape` like `tensor`, the input.

    ValueError unless `out` has as many elements as `shape`, and the dtype and device of `tensor`.
    """
    if out is None:
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    same_size = out.numel() == math.prod(shape)
    if not (same_size and out.dtype == tensor.dtype and out.device == tensor.device):
        # On the device "meta", which has no memory: only the description is wanted.
        expected = describe(torch.empty(shape, dtype=tensor.dtype, device="meta"), tensor.device)
        raise ValueError(f"out is {describe(out)}: expected {expected}, "
                         f"or another shape of {math.prod(shape)} elements")
    return out


def require_rows(tensor: Tensor) -> None:
    """ValueError for a tensor without a dim 0 to cut along."""
    if tensor.dim() == 0:
        raise ValueError("the tensor has no dimensions: expected one that can be cut along dim 0, shape (N, ...)")
