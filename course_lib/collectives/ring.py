"""Around a circle: each rank sends to its right neighbour and receives from its left one, n-1 times.

    n ranks, r this one      N elements, M bytes      chunk c: the c-th of n pieces, as torch.tensor_split cuts them

Reduce-scatter: chunk c starts at its right neighbour, place c+1, as that rank's own share, and goes once around; each
rank adds its share and passes it on, until it comes home to place c complete. All-gather: complete chunks go around.

    steps  n-1 each     bytes sent by one rank  (n-1)/n M each     all-reduce = both: 2 (n-1)/n M, whatever n

No all-reduce sends less (Patarasuk and Yuan 2009). Chunks of unequal size: reduce-scatter sends all but the own chunk,
all-gather all but that of the right neighbour.
"""

from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from course_lib.collectives.messages import in_place, output, require_rows
from course_lib.collectives.pipelined_ring import pays_off, pipelined_all_reduce
from course_lib.collectives.reduction import check, combine, finish
from course_lib.groups.membership import Member, member
from course_lib.groups.tensors import describe, sendable


def ring_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place: a reduce-scatter, then an all-gather. Sends 2 (n-1)/n M bytes."""
    check(op, tensor)
    me = member(group)
    with in_place(tensor, me) as flat:  # (N,)
        chunks = flat.tensor_split(me.n)  # n of (N/n,)
        if pays_off(chunks):  # the same plan in segments
            return pipelined_all_reduce(chunks, op, me)
        # The first write into `tensor`: until the sum is there, its chunks are this rank's summands.
        chunks[me.r].copy_(reduce_scatter(chunks, op, me))
        all_gather(chunks, me)


def reduce_scatter(chunks: tuple[Tensor, ...], op: ReduceOp.RedOpType, me: Member) -> Tensor:
    """This rank's chunk, reduced over all ranks. `chunks` are only read."""
    # It begins with the left neighbour's chunk, so that after n-1 steps its own is the one that comes home.
    partial, spare = chunks[me.r - 1], chunks[0].new_empty(2, *chunks[0].shape)
    for step in range(me.n - 1):
        mine = chunks[(me.r - step - 2) % me.n]
        received = spare[step % 2][:len(mine)]  # the other one holds the partial that is being sent
        me.exchange(partial, (me.r + 1) % me.n, received, (me.r - 1) % me.n)
        partial = combine(op, received, mine)
    return finish(op, partial, me.n)


def all_gather(chunks: tuple[Tensor, ...], me: Member) -> None:
    """Fill all `chunks`, of which this rank has its own, chunk r."""
    for step in range(me.n - 1):
        # What came last goes on: nobody asks who has a chunk, and no link carries one twice.
        newest, next_one = chunks[(me.r - step) % me.n], chunks[(me.r - step - 1) % me.n]
        me.exchange(newest, (me.r + 1) % me.n, next_one, (me.r - 1) % me.n)


def ring_reduce_scatter(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, group: ProcessGroup | None = None,
                        out: Tensor | None = None) -> Tensor:
    """Chunk r of the reduced `tensor`, which is cut along dim 0 into n chunks as torch.tensor_split does.

    tensor (N0, ...) on every rank, returns out (about N0/n, ...). Sends (n-1)/n M bytes.
    """
    check(op, tensor)
    me = member(group)
    require_rows(tensor)
    chunks = sendable(tensor, me).tensor_split(me.n)
    out = output(out, chunks[me.r].shape, tensor)
    out.detach().copy_(reduce_scatter(chunks, op, me).view(out.shape))
    return out


def ring_all_gather(tensor: Tensor, group: ProcessGroup | None = None, out: Tensor | None = None) -> Tensor:
    """Every rank's `tensor`, one after the other along dim 0, on every rank. Sends (n-1)/n of the result's M bytes.

    tensor (N0, ...) of the same shape on every rank, returns out (n N0, ...). Ranks of unequal lengths need `out`:
    its chunks, as torch.tensor_split cuts them, are what the ranks bring, so that this undoes ring_reduce_scatter.
    """
    me = member(group)
    require_rows(tensor)
    if out is None:
        out = tensor.new_empty((me.n * len(tensor), *tensor.shape[1:]))
    require_rows(out)
    with in_place(out, me) as flat:
        chunks = flat.view(out.shape).tensor_split(me.n)
        own = chunks[me.r]
        if (own.numel(), own.dtype) != (tensor.numel(), tensor.dtype):
            raise ValueError(f"out is {describe(out)}, so place {me.r} of {me.n} brings "
                             f"{describe(own, out.device)}: given {describe(tensor)}")
        # Received chunks are written where they belong in `out`: nothing is copied again at the end.
        own.copy_(tensor.detach().view(own.shape))
        all_gather(chunks, me)
    return out
