"""RingAllReduce: one all-reduce around the ring, chunk by chunk. Why does nobody send more than twice its buffer?"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from course_lib.collectives.plan import Plan, plan, times
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.widgets.base import SteppedExplorable, WholeNumber
from course_lib.widgets.frames import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_RANKS, MAX_RANKS = 2, 8
KEY = key_to_cells(CellStyle(MAX_RANKS, adds=True))


class RingAllReduce(SteppedExplorable, script="ring.js"):
    """A ring all-reduce on `num_ranks` ranks (2 to 8), after `step` of its 2(n-1) steps.

    Place in a rank's box = chunk; colour and height = the rank whose share is in the sum.
    """

    num_ranks = WholeNumber(4, MIN_RANKS, MAX_RANKS)
    controls = ("num_ranks",)

    def plan(self) -> Plan:
        return plan("all_reduce", "ring", self.num_ranks)

    def parameters(self) -> dict[str, list[Any]]:
        return {"num_ranks": list(range(MIN_RANKS, MAX_RANKS + 1)), **super().parameters()}

    def num_steps(self) -> int:
        return self.plan().num_steps

    def compute(self) -> dict[str, Any]:
        return frames(self.num_ranks)

    def sentence(self) -> str:
        said = texts(self.plan(), self.step)
        return f"RingAllReduce, {self.num_ranks} ranks: {said['headline'][0].lower()}{said['headline'][1:]}"

    def picture(self) -> Figure:
        from course_lib.widgets.ring_picture import draw

        return draw(self.plan(), self.step, texts(self.plan(), self.step))


@cache
def frames(num_ranks: int) -> dict[str, Any]:
    """All steps of the ring as the browser draws them; a message is [from rank, to rank, chunk]."""
    ring = plan("all_reduce", "ring", num_ranks)
    return {
        "num_ranks": num_ranks,
        "choices": list(range(MIN_RANKS, MAX_RANKS + 1)),
        "num_steps": ring.num_steps,
        "states": [encode(state) for state in ring.states],
        "messages": [[]] + [[[m.src, m.dst, m.chunks[0]] for m in step.messages] for step in ring.steps],
        "key": KEY,
        "texts": [texts(ring, step) for step in range(ring.num_steps + 1)],
    }


def texts(ring: Plan, step: int) -> dict[str, Any]:
    """All that is said at one step; the browser and the static picture show the same."""
    n, last = ring.num_ranks, ring.num_steps
    sent = ring.sent_by_rank(step)[0]
    phase = ring.steps[max(step, 1) - 1].phase
    return {
        "headline": f"Step {step} of {last}: {finding(ring, step)}",
        "detail": detail(ring, step),
        "phase": phase if step else "all-reduce",
        "doing": {"reduce-scatter": "receive a partial sum, add my share",
                  "all-gather": "receive a finished chunk, keep it"}[phase] if step else "of chunks around a ring",
        "sent": f"each rank has sent {times(sent)} its buffer",
        "bound": f"in all 2(n-1)/n = {times(ring.bound)}, the least there is",
        "share": float(sent / ring.bound),
        "key": f"n={n} step={step}",
    }


def finding(ring: Plan, step: int) -> str:
    n, sent = ring.num_ranks, times(ring.sent_by_rank(step)[0])
    if step == 0:
        return "every rank has only its own share of each chunk"
    if step == n - 1:
        return f"each rank has one chunk complete, having sent {sent} its buffer"
    if step == ring.num_steps:
        return f"every rank has the whole sum, having sent {sent} its buffer"
    return f"{'both' if n == 2 else f'all {n}'} links busy, {sent} the buffer sent by each rank"


def detail(ring: Plan, step: int) -> str:
    """What rank 0 sends in this step; the others do the same, one place further on."""
    if step == 0:
        return f"Chunk c sets out from rank c + 1; {ring.num_ranks - 1} steps later it comes home to rank c, complete."
    message = next(message for message in ring.steps[step - 1].messages if message.src == 0)
    (chunk,) = message.chunks
    num = len(ring.states[step - 1].cells[0][chunk])
    if message.kind == "copy":
        return f"Rank 0 sends chunk {chunk}, complete, to rank {message.dst}; the others likewise, each another chunk."
    what = "its share" if num == 1 else f"the sum of {num} shares"
    return f"Rank 0 sends {what} of chunk {chunk} to rank {message.dst}, which adds its own."
