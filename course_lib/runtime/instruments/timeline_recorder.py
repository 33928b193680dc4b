"""What `record_timeline` hears: spans and calls on process groups, turned into events when the recording closes."""

import time
from dataclasses import dataclass, field
from typing import Any

from course_lib.runtime.instruments.clocks import DeviceClock, HostClock, Mark, Read
from course_lib.runtime.instruments.intervals import TimelineEvent
from course_lib.runtime.instruments.pending import GroupCall


@dataclass(slots=True)
class _Bar:
    """An event whose times are still marks of the clock."""

    lane: str
    name: str
    start: Mark
    end: Mark | None = None
    labels: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    reached: bool = True  # whether the end comes as soon as the rank's own streams have come to where they are


class TimelineRecorder:
    """Listens to spans and calls, and marks their edges by `clock`.

    Of a call on a GPU's stream the start is when the calling thread's stream has reached the call; the end when a
    stream that does nothing else has waited for it; and a wait is how long the calling thread's stream stood at it.
    """

    def __init__(self, clock: HostClock | DeviceClock) -> None:
        self.clock = clock
        self.bars: list[_Bar] = []
        self.open_spans: list[_Bar] = []
        self.calls: dict[int, _Bar] = {}

    def begin_span(self, name: str, labels: dict[str, Any]) -> None:
        """A span begins: a bar of computing."""
        bar = _Bar("compute", name, 0.0, None, labels, len(self.open_spans))
        self.open_spans.append(bar)
        bar.start = self.clock.mark()

    def end_span(self) -> None:
        """The innermost span ends."""
        end = self.clock.mark()
        if self.open_spans:  # empty when the recorder was closed inside the span
            bar = self.open_spans.pop()
            bar.end = end
            self.bars.append(bar)

    def begin_call(self, call: GroupCall) -> None:
        """A call on a process group begins: a bar of communication."""
        partner = {"group": call.group} if call.peer is None else {"peer": call.peer}
        labels = {"bytes": call.num_bytes, **partner}
        self.calls[call.number] = _Bar("communication", call.op, self.clock.mark(call.on_stream), None, labels)

    def end_call(self, call: GroupCall) -> None:
        """The call is complete, which nobody may have waited for yet."""
        end = self.clock.mark(call.on_stream)
        if bar := self.calls.get(call.number):  # None when the call began before the recording
            bar.end, bar.reached = end, False

    def begin_wait(self, call: GroupCall) -> Mark:
        """The rank begins to wait for a call."""
        return self.clock.mark(call.on_stream)

    def end_wait(self, call: GroupCall, since: Mark) -> None:
        """It goes on; the stretch between is a bar of waiting."""
        self.bars.append(_Bar("waiting", call.op, since, self.clock.mark(call.on_stream)))
        if (bar := self.calls.get(call.number)) and bar.end is not None:
            bar.reached = True

    def close(self, rank: int, zero_s: float, wait: bool) -> list[TimelineEvent]:
        """What was heard, in order of the starts; what has not ended yet ends now, and says so if it is a call.

        With `wait` the host waits for what the rank's own streams have been given so far. It never waits for a call
        that they do not wait for: perhaps the other rank begins it only when this one is further on.
        """
        while self.open_spans:
            self.end_span()
        now, read = self.clock.mark(), self.clock.reader()
        now_s = read(now, wait)  # first: what was marked on this stream before is there, too, from now on
        now_s = time.perf_counter() if now_s is None else now_s
        events = [_event(bar, rank, zero_s, now_s, read, wait) for bar in [*self.bars, *self.calls.values()]]
        return sorted((event for event in events if event), key=lambda event: event.start_s)


def _event(bar: _Bar, rank: int, zero_s: float, now_s: float, read: Read, wait: bool) -> TimelineEvent | None:
    """`bar` in seconds since the zero; None where its start was not reached, and nobody waits for that."""
    start_s = read(bar.start, wait)
    end_s = None if bar.end is None else read(bar.end, wait and bar.reached)
    if start_s is None:
        return None
    unfinished = {"unfinished": True} if end_s is None and bar.lane == "communication" else {}
    end_s = now_s if end_s is None else end_s
    return TimelineEvent(rank, bar.lane, bar.name, start_s - zero_s, end_s - zero_s, bar.labels | unfinished, bar.depth)
