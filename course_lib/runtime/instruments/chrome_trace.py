"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing read.

Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable
from typing import Any

from course_lib.runtime.instruments.intervals import side_by_side
from course_lib.runtime.instruments.timeline_event import TimelineEvent

LANES = ("compute", "waiting", "communication")
ROWS_A_LANE = 100  # thread ids for a lane: calls in flight at the same time need threads of their own


def trace_events(ranks: Iterable[int], all_events: list[TimelineEvent]) -> list[dict[str, Any]]:
    """Names of processes (ranks) and threads (lanes), and complete events ("X"); times in microseconds."""
    trace: list[dict[str, Any]] = []
    for rank in ranks:
        trace.append(metadata("process_name", rank, 0, name=f"rank {rank}"))
        trace.append(metadata("process_sort_index", rank, 0, sort_index=rank))
        for number, lane in enumerate(LANES):
            events = [event for event in all_events if (event.rank, event.lane) == (rank, lane)]
            # Spans nest, and the viewers draw that on one thread; calls in flight overlap in any way.
            times = [(event.start_s, event.end_s) for event in events]
            rows = [0] * len(events) if lane == "compute" else side_by_side(times)
            for row in sorted(set(rows)):
                name = f"{lane} {row}" if row else lane
                trace.append(metadata("thread_name", rank, number * ROWS_A_LANE + row, name=name))
            trace += [complete(event, number * ROWS_A_LANE + row) for event, row in zip(events, rows)]
    return trace


def metadata(kind: str, rank: int, thread: int, **args: Any) -> dict[str, Any]:
    """An event that names a process or a thread ("ph": "M")."""
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": args}


def complete(event: TimelineEvent, thread: int) -> dict[str, Any]:
    """A bar with begin and duration in microseconds ("ph": "X")."""
    start_us, end_us = (round(seconds * 1e6, 3) for seconds in (event.start_s, event.end_s))
    return {"name": event.name, "cat": event.lane, "ph": "X", "pid": event.rank, "tid": thread,
            "ts": start_us, "dur": round(end_us - start_us, 3), "args": event.labels}
