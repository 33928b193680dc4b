"""Around a circle: each rank sends to its right neighbour and receives from its left one, n-1 times.

    n ranks, r this one      N elements, M bytes      chunk c: the c-th of n pieces, as torch.tensor_split cuts them

Reduce-scatter: chunk c starts at its right neighbour, rank c+1, as that rank's own share, and goes once around; each
rank adds its share and passes it on, until it comes home to rank c complete. All-gather: complete chunks go around.

    steps  n-1 each     bytes sent by one rank  (n-1)/n M each     all-reduce = both: 2 (n-1)/n M, whatever n

No all-reduce sends less (Patarasuk and Yuan 2009). Chunks of unequal size: reduce-scatter sends all but the own chunk,
all-gather all but that of the right neighbour.

Long chunks travel in segments, so that a rank sends, receives and adds at the same time. What arrives in one step is
what is sent in the next, in both halves of the all-reduce, so each segment is passed on as soon as it is here and
added, while the next ones are on their way. Results and bytes sent are the same.

With two kinds of links, fast ones inside a node and slow ones between nodes, send only 1/g over the slow ones:

    g  ranks in a node (the group `intra`)      k  nodes (the group `inter`: the ranks with the same place in theirs)

    node 0:  0 1 2 3                intra of rank 5: [4, 5, 6, 7]
    node 1:  4 5 6 7                inter of rank 5: [1, 5]

Bytes that one rank sends: 2 (g-1)/g M inside its node, 2 (k-1)/k M/g between nodes. A ring over all g k ranks would
send nearly 2 M over each link between nodes.
"""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_process_group_ranks

from course_lib.collectives.direct import check, combine, finish, in_place, output, require_rows
from course_lib.groups.membership import Member, describe, member, sendable


def ring_all_reduce(tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, group: ProcessGroup | None = None) -> None:
    """All-reduce `tensor` in place: a reduce-scatter, then an all-gather. Sends 2 (n-1)/n M bytes."""
    check(op, tensor)
    me = member(group)
    with in_place(tensor, me) as flat:  # (N,)
        chunks = flat.tensor_split(me.n)  # (N,) -> n of (N/n,)
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


def hierarchical_all_reduce(tensor: Tensor, intra: ProcessGroup, inter: ProcessGroup,
                            op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
    """All-reduce `tensor` in place over all nodes: reduce-scatter inside, all-reduce between, all-gather inside.

    All nodes have the same number of ranks. ValueError unless this rank is the one that `intra` and `inter` share.
    """
    check(op, tensor)
    node, across = member(intra), member(inter)
    shared = sorted({*get_process_group_ranks(node.group)} & {*get_process_group_ranks(across.group)})
    if len(shared) > 1:
        raise ValueError(f"intra and inter share the ranks {shared}: expected only the calling rank in both")
    with in_place(tensor, node) as flat:  # (N,)
        chunks = flat.tensor_split(node.n)  # g of (N/g,)
        mine = chunks[node.r]
        # AVG becomes a mean of means, which is right: all nodes have as many ranks.
        mine.copy_(reduce_scatter(chunks, op, node))
        # Each of the g ranks of a node takes its own part across, so that the slow wires carry M once and all g cards
        # send.
        ring_all_reduce(mine, op, across.group)
        all_gather(chunks, node)


# Long chunks, in segments

LONG_BYTES = 1 << 20  # chunks shorter than this go the plain way
SEGMENT_BYTES = 1 << 23
AHEAD_BYTES = 3 * SEGMENT_BYTES  # receives that wait for their segment while an earlier one is added

_kept = threading.local()  # a thread each: two all-reduces at the same time need two buffers


@dataclass(frozen=True)
class Arrival:
    """A segment that arrives in `step`, 0 <= step < 2(n-1): it is received in `buffer` and belongs to `segment`."""

    step: int
    segment: Tensor
    buffer: Tensor


def pays_off(chunks: tuple[Tensor, ...]) -> bool:
    """Whether the messages are long enough to be cut. NCCL cuts and overlaps by itself, hence only on the CPU."""
    return len(chunks) > 1 and chunks[0].is_cpu and chunks[0].nbytes >= LONG_BYTES


def pipelined_all_reduce(chunks: tuple[Tensor, ...], op: ReduceOp.RedOpType, me: Member) -> None:
    """All-reduce the n `chunks` of a flat tensor in place: steps 0 to n-2 reduce, steps n-1 to 2n-3 gather."""
    left, right = (me.r - 1) % me.n, (me.r + 1) % me.n
    arrivals, ahead = plan_arrivals(chunks, me)
    # Posted before anything is sent, so that what the left neighbour sends first finds its buffer.
    receives = [me.start_receive(arrival.buffer, left) for arrival in arrivals[:ahead]]
    sends = [me.start_send(segment, right) for segment in cut_segments(chunks[me.r - 1])]
    for number, arrival in enumerate(arrivals):
        receives[number].wait()
        if arrival.step < me.n - 1:
            combine(op, arrival.segment, arrival.buffer)
        if arrival.step == me.n - 2:
            finish(op, arrival.segment, me.n)
        if arrival.step < 2 * me.n - 3:
            sends.append(me.start_send(arrival.segment, right))
        # What it goes into is free by now: the buffer that was just added up, or the segment itself.
        if number + ahead < len(arrivals):
            receives.append(me.start_receive(arrivals[number + ahead].buffer, left))
    # At the end only: a send is done when its bytes have left, and waiting for each would stop the additions.
    for send in sends:
        send.wait()


def plan_arrivals(chunks: tuple[Tensor, ...], me: Member) -> tuple[list[Arrival], int]:
    """All arrivals, in order, and how many of them may be received ahead: as many as have a buffer of their own.

    A complete segment is received where it belongs: by then all have seen its old value.
    """
    arrivals: list[Arrival] = []
    longest = cut_segments(chunks[0])[0]
    ahead = AHEAD_BYTES // longest.nbytes
    num_spare = min(ahead, (me.n - 1) * len(cut_segments(chunks[0])))  # what reducing needs at once
    spare = spare_memory(num_spare * longest.nbytes).view(longest.dtype).split(len(longest))
    for step in range(2 * me.n - 2):
        for segment in cut_segments(chunks[(me.r - step - 2) % me.n]):
            buffer = spare[len(arrivals) % num_spare][:len(segment)] if step < me.n - 1 else segment
            arrivals.append(Arrival(step, segment, buffer))
    return arrivals, ahead


def spare_memory(num_bytes: int) -> Tensor:
    """uint8 (num_bytes,), kept for the next call of this thread: at most AHEAD_BYTES.

    Fresh memory comes as pages that the system has to zero first, which takes longer than the additions.
    """
    kept = getattr(_kept, "memory", None)
    if kept is None or len(kept) < num_bytes:
        kept = _kept.memory = torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
    return kept[:num_bytes]


def cut_segments(chunk: Tensor) -> tuple[Tensor, ...]:
    """The segments of a chunk (N/n,)."""
    return chunk.split(SEGMENT_BYTES // chunk.element_size())
