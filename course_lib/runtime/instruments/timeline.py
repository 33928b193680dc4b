"""See when a rank does what: `with record_timeline() as timeline:` and `with span("forward"):` inside it.

Two lanes a rank: "compute" holds the spans, "communication" every call on a process group from its start
until the backend has completed it (gloo does not tell for send and recv: there until `wait()` returns).

On a GPU the host only hands work over. There a span lasts while the GPU is at the work that was handed over inside it,
a call of NCCL from when the GPU's stream comes to it until its last byte is there, and a wait as long as the stream
stands still (clocks.py). Calls on tensors of the host, and all calls of gloo, keep the host's clock.
"""

import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from course_lib.pictures.drawn import claim
from course_lib.pictures.units import human_seconds
from course_lib.runtime import context
from course_lib.runtime.instruments import pending
from course_lib.runtime.instruments.clocks import HostClock, this_clock
from course_lib.runtime.instruments.recordings import Recording, keep_recording, span_listeners, this_rank
from course_lib.runtime.instruments.timeline_events import (
    Intervals,
    TimelineEvent,
    TimelineRecorder,
    intersection,
    length,
    side_by_side,
    transfers,
    union,
)

LANES = ("compute", "waiting", "communication")
ROWS_A_LANE = 100  # thread ids for a lane: calls in flight at the same time need threads of their own
MAX_NAMES = 6  # in the one-sentence summary
TRACE = "chrome_trace"  # where an output's metadata has it


def trace_events(ranks: Iterable[int], all_events: list[TimelineEvent]) -> list[dict[str, Any]]:
    """The events in the Trace Event Format, which Perfetto and chrome://tracing read: names of processes (ranks) and
    threads (lanes), and complete events ("X"), in microseconds.

    Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    trace: list[dict[str, Any]] = []

    def name_it(kind: str, rank: int, thread: int, **args: Any) -> None:
        trace.append({"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": args})

    for rank in ranks:
        name_it("process_name", rank, 0, name=f"rank {rank}")
        name_it("process_sort_index", rank, 0, sort_index=rank)
        for number, lane in enumerate(LANES):
            events = [event for event in all_events if (event.rank, event.lane) == (rank, lane)]
            # Spans nest, and the viewers draw that on one thread; calls in flight overlap in any way.
            times = [(event.start_s, event.end_s) for event in events]
            rows = [0] * len(events) if lane == "compute" else side_by_side(times)
            for row in sorted(set(rows)):
                name = f"{lane} {row}" if row else lane
                name_it("thread_name", rank, number * ROWS_A_LANE + row, name=name)
            for event, row in zip(events, rows):
                start_us, end_us = (round(seconds * 1e6, 3) for seconds in (event.start_s, event.end_s))
                trace.append({"name": event.name, "cat": event.lane, "ph": "X", "pid": rank,
                              "tid": number * ROWS_A_LANE + row, "ts": start_us,
                              "dur": round(end_us - start_us, 3), "args": event.labels})
    return trace


@dataclass(frozen=True)
class Clock:
    """A timeline's zero: by the counter that all processes of the host share, and by wall clock."""

    host: str = field(default_factory=platform.node)
    counter_s: float = field(default_factory=time.perf_counter)
    epoch_s: float = field(default_factory=time.time)


@dataclass(frozen=True, repr=False)
class Timeline(Recording):
    """What `ranks` did and when. `waits`: when a rank (with NCCL its GPU) was inside a communication call or wait().

    `cpu_s`: seconds of CPU that each rank's process used while it recorded. Ranks that share cores also stand still
    between two instructions, which no event shows: this tells. Empty for GPUs, and for ranks of several hosts.
    """

    ranks: tuple[int, ...]
    events: list[TimelineEvent] = field(default_factory=list)
    waits: list[TimelineEvent] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    headline: str = ""  # what there is to see, where somebody has said it
    holds: bool | None = None
    until_s: float | None = None  # where the picture's axis ends
    cpu_s: dict[int, float] = field(default_factory=dict)
    records = "timeline"

    @classmethod
    def merge(cls, logs: Iterable[Recording]) -> "Timeline":
        """One timeline of all timelines among `logs`; its zero is the earliest one's.

        Timelines of one host are aligned by its counter, hosts among each other by their wall clocks.
        """
        own = [log for log in logs if isinstance(log, cls)]
        if not own:
            return cls(())
        first_of_host: dict[str, Clock] = {}
        for log in sorted(own, key=lambda log: log.clock.counter_s):
            first_of_host.setdefault(log.clock.host, log.clock)
        zero = min(first_of_host.values(), key=lambda clock: clock.epoch_s)
        merged = cls(tuple(sorted({rank for log in own for rank in log.ranks})), clock=zero)
        for log in own:
            host_zero = first_of_host[log.clock.host]
            shift = host_zero.epoch_s - zero.epoch_s + log.clock.counter_s - host_zero.counter_s
            for mine, theirs in ((merged.events, log.events), (merged.waits, log.waits)):
                mine += [replace(e, start_s=e.start_s + shift, end_s=e.end_s + shift) for e in theirs]
            for rank, seconds in log.cpu_s.items() if len(first_of_host) == 1 else ():
                merged.cpu_s[rank] = merged.cpu_s.get(rank, 0.0) + seconds
        for events in (merged.events, merged.waits):
            events.sort(key=lambda event: (event.rank, event.start_s))
        return merged

    def by_rank(self, rank: int) -> "Timeline":
        """What one rank did, on the same clock. ValueError for a rank that recorded nothing."""
        self.check_has(rank)
        return replace(self, ranks=(rank,), events=[event for event in self.events if event.rank == rank],
                       waits=[wait for wait in self.waits if wait.rank == rank],
                       cpu_s={other: seconds for other, seconds in self.cpu_s.items() if other == rank})

    @property
    def duration_s(self) -> float:
        """From the start of the first event to the end of the last."""
        starts, ends = [event.start_s for event in self.events], [event.end_s for event in self.events]
        return max(ends) - min(starts) if self.events else 0.0

    def total_s(self, name: str | None = None, lane: str | None = None, rank: int | None = None) -> float:
        """Seconds during which such an event ran, added over ranks; at the same time counts once."""
        chosen = [event for event in self.events + self.waits
                  if name in (None, event.name) and rank in (None, event.rank)
                  and (event.lane == lane if lane else event.lane != "waiting")]
        return sum(length(union((event.start_s, event.end_s) for event in chosen if event.rank == one_rank))
                   for one_rank in self.ranks)

    def hidden_s(self, rank: int) -> float:
        """Seconds of communication during which `rank` computed: inside a span, and not inside a call."""
        mine = self.by_rank(rank)
        both = intersection(mine._times("communication"), mine._times("compute"))
        return length(both) - length(intersection(both, mine._times("waiting")))

    def waiting_s(self, rank: int) -> float:
        """Seconds that `rank` spent inside communication calls and their wait(), and so did not compute."""
        return length(self.by_rank(rank)._times("waiting"))

    def _times(self, lane: str) -> Intervals:
        return union((event.start_s, event.end_s) for event in self.events + self.waits if event.lane == lane)

    def shows(self, headline: str, holds: bool | None = None, until_s: float | None = None) -> "Timeline":
        """The same under a headline that says what there is to see. `holds`: whether these very events say so.

        until_s: where the time axis ends, so that pictures can be compared: the longest one's duration_s.
        """
        return replace(self, headline=headline, holds=None if holds is None else bool(holds), until_s=until_s)

    def blocked_s(self, rank: int) -> float:
        """Seconds of waiting_s in which bytes of a call of its own were on their way. The rest is for others."""
        times = transfers(self.events).get(rank, [])
        return length(intersection(self.by_rank(rank)._times("waiting"), times))

    def chrome_trace(self) -> str:
        """The events as JSON for https://ui.perfetto.dev or chrome://tracing: ranks are processes, lanes threads."""
        trace = {"traceEvents": trace_events(self.ranks, self.events + self.waits), "displayTimeUnit": "ms"}
        return json.dumps(trace, default=str)  # a label may be anything

    def save_chrome_trace(self, path: str | Path) -> None:
        """Write chrome_trace() into a file."""
        Path(path).write_text(self.chrome_trace(), encoding="utf-8")

    def data_to_keep(self) -> dict[str, str]:
        return {TRACE: self.chrome_trace()} if self.events else {}

    def finding(self) -> str:
        if not self.ranks:
            return "Timeline: nothing was recorded; wrap the code in `with record_timeline():`"
        who = f"{len(self.ranks)} ranks" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        texts = []
        for what, lane in (("spans", "compute"), ("communication calls", "communication")):
            counts = Counter(event.name for event in self.events if event.lane == lane)
            shown = [f"{count} {name}" for name, count in list(counts.items())[:MAX_NAMES]]
            names = f" ({', '.join(shown)}{', ...' if len(counts) > MAX_NAMES else ''})" if counts else ""
            texts.append(f"{counts.total()} {what}{names}")
        said = f": {claim(self.headline, self.holds)}" if self.headline else ""
        return f"Timeline of {who}{said}: {'; '.join(texts)}"

    def alternative(self) -> str:
        if not self.events:
            return self.finding()
        texts = [*self._texts()[bool(self.headline):], self._shared_cores()]  # the headline is in the finding
        return "; ".join(filter(None, [self.finding(), *texts]))

    def _texts(self) -> tuple[str, str]:
        """What the picture shows, and the numbers behind it: how the average rank spends its time."""
        each = len(self.ranks) * self.duration_s or 1.0
        waiting, blocked = (sum(map(seconds, self.ranks)) for seconds in (self.waiting_s, self.blocked_s))
        apart = self.total_s(lane="compute") - sum(
            length(intersection(mine._times("compute"), mine._times("waiting")))
            for mine in map(self.by_rank, self.ranks))
        shares = {"computes": apart, "is blocked while bytes move": blocked, "waits for others": waiting - blocked}
        facts = ", ".join(f"{what} {seconds / each:.0%}" for what, seconds in shares.items() if seconds)
        whose = "the average rank" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        facts = f"of {human_seconds(self.duration_s)} {whose} {facts}"
        if self.headline:
            return claim(self.headline, self.holds), facts
        communication_s = self.total_s(lane="communication")
        hidden = sum(map(self.hidden_s, self.ranks)) / communication_s if communication_s else 0.0
        return facts, f"{hidden:.0%} of the communication runs while its rank computes" if communication_s else ""

    def _shared_cores(self) -> str:
        """How much of a core each rank had, where there are more ranks than cores; else nothing."""
        if len(self.cpu_s) <= (cores := context.count_cores()):
            return ""
        least, most = human_seconds(min(self.cpu_s.values())), human_seconds(max(self.cpu_s.values()))
        each = least if least == most else f"{least} to {most}"
        return f"{len(self.cpu_s)} ranks on {cores} core{'s' * (cores > 1)}: {each} of CPU each"

    def png(self) -> bytes | None:
        if not self.events:
            return None
        from course_lib.runtime.instruments.pictures import draw_timeline  # matplotlib is slow to import

        return draw_timeline(self.ranks, self.events, self.waits, self.until_s or self.duration_s, *self._texts(),
                             self._shared_cores())


@contextmanager
def record_timeline() -> Iterator[Timeline]:
    """Record the spans and the communication calls of this rank inside the block."""
    timeline = Timeline((this_rank(),))
    recorder = TimelineRecorder(clock := this_clock())
    began_s, failed = time.process_time(), True
    with keep_recording(timeline):
        span_listeners.append(recorder)
        try:
            with pending.listen(recorder):
                yield timeline
            failed = False
        finally:
            span_listeners.remove(recorder)
            if isinstance(clock, HostClock):
                timeline.cpu_s[timeline.ranks[0]] = time.process_time() - began_s
            # After an error nobody waits for a GPU: what it still has to do may never end.
            for event in recorder.close(timeline.ranks[0], timeline.clock.counter_s, wait=not failed):
                (timeline.waits if event.lane == "waiting" else timeline.events).append(event)
