"""The ring for long messages: chunks travel in segments, so that a rank sends, receives and adds at the same time.

The plan is ring.py's, cut finer. What arrives in one step is what is sent in the next, in both halves of the
all-reduce, so each segment is passed on as soon as it is here and added, while the next ones are on their way.
Results and bytes sent are the plain ring's.
"""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from course_lib.collectives.reduction import combine, finish
from course_lib.groups.membership import Member

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
    arrivals, ahead = plan(chunks, me)
    # Posted before anything is sent, so that what the left neighbour sends first finds its place.
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
        # What it goes into is free by now: the buffer that was just added up, or the segment's own place.
        if number + ahead < len(arrivals):
            receives.append(me.start_receive(arrivals[number + ahead].buffer, left))
    # At the end only: a send is done when its bytes have left, and waiting for each would stop the additions.
    for send in sends:
        send.wait()


def plan(chunks: tuple[Tensor, ...], me: Member) -> tuple[list[Arrival], int]:
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
