"""When a transfer is really under way: a call waits first for the others to come, and only then for its bytes.

A collective can move bytes once the last rank of its group has called it, a message once it is sent and a receive is
there. Ranks make their calls on a group in one order, so the n-th of one is the n-th of all.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable

from course_lib.runtime.instruments.intervals import Intervals, union
from course_lib.runtime.instruments.timeline_event import TimelineEvent


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
