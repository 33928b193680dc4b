"""Sets of times, as sorted lists of disjoint (start, end).

What a timeline is made of.

When a transfer is really under way: a call waits first for the others to come, and only then for its bytes.

A collective can move bytes once the last rank of its group has called it, a message once it is sent and a receive is
there. Ranks make their calls on a group in one order, so the n-th of one is the n-th of all.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

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
    """Seconds in all of them."""
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
        """Seconds from the event's begin to its end."""
        return self.end_s - self.start_s


def transfers(events: Iterable[TimelineEvent]) -> dict[int, Intervals]:
    """For each rank the times when bytes of a call of its own could move, as far as the ranks among `events` tell."""
    begun: dict[Hashable, float] = {}
    keyed = []
    seen: dict[Hashable, int] = defaultdict(int)
    for event in sorted(events, key=lambda event: event.start_s):
        if event.lane != "communication":
            continue
        place = seen[event.rank, _together(event)]
        seen[event.rank, _together(event)] += 1
        key = (_together(event), place)
        begun[key] = max(begun.get(key, event.start_s), event.start_s)
        keyed.append((event, key))
    of_rank: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for event, key in keyed:
        if begun[key] < event.end_s:
            of_rank[event.rank].append((begun[key], event.end_s))
    return {rank: union(intervals) for rank, intervals in of_rank.items()}


def _together(event: TimelineEvent) -> Hashable:
    """What the calls of different ranks that belong together have in common."""
    peer = event.labels.get("peer")
    if event.name == "send" and peer is not None:
        return "message", event.rank, peer
    if event.name == "recv" and peer is not None:
        return "message", peer, event.rank
    return event.name, event.labels.get("group", event.rank)
