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

from course_lib.collectives.messages import Member
from course_lib.collectives.reduction import combine, finish

LONG_BYTES = 1 << 20  # chunks shorter than this go the plain way
SEGMENT_BYTES = 1 << 23
POSTED_AHEAD = 3  # receives that wait for a segment while an earlier one is added

_kept = threading.local()


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
    arrivals = plan(chunks, me)
    receives = [me.start_receive(arrival.buffer, left) for arrival in arrivals[:POSTED_AHEAD]]
    sends = [me.start_send(segment, right) for segment in cut(chunks[me.r - 1])]
    for number, arrival in enumerate(arrivals):
        receives[number].wait()
        if arrival.step < me.n - 1:
            combine(op, arrival.segment, arrival.buffer)
        if arrival.step == me.n - 2:
            finish(op, arrival.segment, me.n)
        if arrival.step < 2 * me.n - 3:
            sends.append(me.start_send(arrival.segment, right))
        if number + POSTED_AHEAD < len(arrivals):
            receives.append(me.start_receive(arrivals[number + POSTED_AHEAD].buffer, left))
    for send in sends:
        send.wait()


def plan(chunks: tuple[Tensor, ...], me: Member) -> list[Arrival]:
    """All arrivals, in order. A complete segment is received where it belongs: by then all have seen its old value."""
    arrivals: list[Arrival] = []
    longest = len(cut(chunks[0])[0])
    pool = spare_memory(POSTED_AHEAD * longest * chunks[0].element_size()).view(chunks[0].dtype).split(longest)
    for step in range(2 * me.n - 2):
        for segment in cut(chunks[(me.r - step - 2) % me.n]):
            spare = pool[len(arrivals) % POSTED_AHEAD][:len(segment)]
            arrivals.append(Arrival(step, segment, spare if step < me.n - 1 else segment))
    return arrivals


def spare_memory(num_bytes: int) -> Tensor:
    """uint8 (num_bytes,), kept for the next call of this thread: at most POSTED_AHEAD segments.

    Fresh memory comes as pages that the system has to zero first, which takes longer than the additions.
    """
    kept = getattr(_kept, "memory", None)
    if kept is None or len(kept) < num_bytes:
        kept = _kept.memory = torch.empty(num_bytes, dtype=torch.uint8)
    return kept[:num_bytes]


def cut(chunk: Tensor) -> tuple[Tensor, ...]:
    """The segments of a chunk (N/n,)."""
    return chunk.split(SEGMENT_BYTES // chunk.element_size())
