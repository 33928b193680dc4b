"""A timeline in the Trace Event Format, which Perfetto and chrome://tracing read.

Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from typing import TYPE_CHECKING, Any

from course_lib.runtime.intervals import side_by_side

if TYPE_CHECKING:
    from course_lib.runtime.timeline import Timeline

LANES = ("compute", "waiting", "communication")
ROWS_A_LANE = 100  # thread ids of a lane: calls in flight at the same time need threads of their own


def trace_events(timeline: "Timeline") -> list[dict[str, Any]]:
    """Names of processes (ranks) and threads (lanes), then one complete event ("X") each; times in microseconds."""
    trace: list[dict[str, Any]] = []
    for rank in timeline.ranks:
        trace += [metadata("process_name", rank, 0, name=f"rank {rank}"), metadata("process_sort_index", rank, 0, sort_index=rank)]
        for index, lane in enumerate(LANES):
            events = [event for event in timeline.events + timeline.waits if event.rank == rank and event.lane == lane]
            # Spans nest, and the viewers draw that on one thread; calls in flight overlap in any way.
            times = [(event.start_s, event.end_s) for event in events]
            row_of = [0] * len(events) if lane == "compute" else side_by_side(times)
            for row in sorted(set(row_of)):
                trace.append(metadata("thread_name", rank, index * ROWS_A_LANE + row, name=f"{lane} {row or ''}".strip()))
            trace += [{"name": event.name, "cat": lane, "ph": "X", "pid": rank, "tid": index * ROWS_A_LANE + row,
                       "ts": event.start_s * 1e6, "dur": event.duration_s * 1e6, "args": event.labels}
                      for event, row in zip(events, row_of)]
    return trace


def metadata(kind: str, rank: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": args}
