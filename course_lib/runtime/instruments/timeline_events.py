"""What a timeline is made of: events, the recorder that hears them, and sets of times.

A recorder hears spans and calls on process groups, marks their edges by a clock, and turns them into events when the
recording closes. Sets of times are sorted lists of disjoint (start, end).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from course_lib.runtime.instruments.clocks import DeviceClock, HostClock, Mark, Read
from course_lib.runtime.instruments.pending import GroupCall


@dataclass(frozen=True)
class TimelineEvent:
    """What happened on a lane of a rank, in seconds since the zero; `depth` spans are around it."""

    rank: int
    lane: str  # "compute", "communication"; among Timeline.waits "waiting"
    name: str
    start_s: float
    end_s: float
    labels: dict[str, Any] = field(default_factory=dict)
    depth: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


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
        bar = _Bar("compute", name, 0.0, None, labels, len(self.open_spans))
        self.open_spans.append(bar)
        bar.start = self.clock.mark()

    def end_span(self) -> None:
        end = self.clock.mark()
        if self.open_spans:  # empty when the recorder was closed inside the span
            bar = self.open_spans.pop()
            bar.end = end
            self.bars.append(bar)

    def begin_call(self, call: GroupCall) -> None:
        partner = {"group": call.group} if call.peer is None else {"peer": call.peer}
        labels = {"bytes": call.num_bytes, **partner}
        self.calls[call.number] = _Bar("communication", call.op, self.clock.mark(call.on_stream), None, labels)

    def end_call(self, call: GroupCall) -> None:
        end = self.clock.mark(call.on_stream)
        if bar := self.calls.get(call.number):  # None when the call began before the recording
            bar.end, bar.reached = end, False

    def begin_wait(self, call: GroupCall) -> Mark:
        return self.clock.mark(call.on_stream)

    def end_wait(self, call: GroupCall, since: Mark) -> None:
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


Intervals = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The times inside at least one of `intervals`, which may overlap and come in any order.

    >>> union([(3, 4), (0, 1), (0.5, 2)])
    [(0, 2), (3, 4)]
    """
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(these: Intervals, those: Intervals) -> Intervals:
    """The times inside both.

    >>> intersection([(0, 2), (3, 5)], [(1, 4)])
    [(1, 2), (3, 4)]
    """
    both: Intervals = []
    i = j = 0
    while i < len(these) and j < len(those):
        start, end = max(these[i][0], those[j][0]), min(these[i][1], those[j][1])
        if start < end:
            both.append((start, end))
        if these[i][1] < those[j][1]:
            i += 1
        else:
            j += 1
    return both


def longest_outside(start: float, end: float, taken: Intervals) -> tuple[float, float]:
    """The longest stretch between `start` and `end` that none of `taken` covers; of length 0 where there is none."""
    edges = [start, *(edge for interval in intersection([(start, end)], taken) for edge in interval), end]
    return max(zip(edges[::2], edges[1::2]), key=lambda stretch: stretch[1] - stretch[0])


def length(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)


def side_by_side(intervals: list[tuple[float, float]]) -> list[int]:
    """A row for each of `intervals`, the first one free: those in one row do not overlap."""
    row_ends: list[float] = []
    row_of = [0] * len(intervals)
    for index in sorted(range(len(intervals)), key=lambda index: intervals[index]):
        start, end = intervals[index]
        row = next((row for row, free in enumerate(row_ends) if free <= start), len(row_ends))
        row_ends[row:row + 1] = [end]
        row_of[index] = row
    return row_of


def transfers(events: Iterable[TimelineEvent]) -> dict[int, Intervals]:
    """For each rank the times when bytes of a call of its own could move, as far as the ranks among `events` tell.

    A call waits first for the others to come, and only then for its bytes: those of a collective can move once the last
    rank of its group has called it, a message once it is sent and a receive is there. Ranks make their calls on a group
    in one order, so the n-th of one is the n-th of all.
    """
    begun: dict[Hashable, float] = {}
    keyed = []
    seen: Counter[Hashable] = Counter()
    calls = (event for event in events if event.lane == "communication")
    for event in sorted(calls, key=lambda event: event.start_s):
        key = _together(event), seen[event.rank, _together(event)]
        seen[event.rank, _together(event)] += 1
        begun[key] = max(begun.get(key, event.start_s), event.start_s)
        keyed.append((event, key))
    of_rank: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event, key in keyed:
        if begun[key] < event.end_s:
            of_rank[event.rank].append((begun[key], event.end_s))
    return {rank: union(intervals) for rank, intervals in of_rank.items()}


def _together(event: TimelineEvent) -> Hashable:
    """What the calls of different ranks that belong together have in common."""
    if (peer := event.labels.get("peer")) is not None:
        return "message", *((event.rank, peer) if event.name == "send" else (peer, event.rank))
    return event.name, event.labels.get("group", event.rank)
