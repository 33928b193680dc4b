"""See when a rank does what: `with record_timeline() as timeline:` and `with span("forward"):` inside it.

Two lanes a rank: "compute" holds the spans, "communication" every call on a process group from its start
until the backend has completed it (gloo does not tell for send and recv: there until `wait()` returns). Calls
that never pass through Python are not seen: those of torch's own DDP, and functional collectives (DTensor).

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

from course_lib.pictures.units import human_seconds
from course_lib.runtime.instruments import pending
from course_lib.runtime.instruments.chrome_trace import trace_events
from course_lib.runtime.instruments.clocks import this_clock
from course_lib.runtime.instruments.intervals import Intervals, intersection, length, union
from course_lib.runtime.instruments.recordings import Recording, keeping, this_rank
from course_lib.runtime.instruments.spans import span_listeners
from course_lib.runtime.instruments.timeline_event import TimelineEvent
from course_lib.runtime.instruments.timeline_recorder import TimelineRecorder

MAX_NAMES = 6  # in the one-sentence summary


@dataclass(frozen=True)
class Clock:
    """A timeline's zero: by the counter that all processes of the host share, and by wall clock."""

    host: str = field(default_factory=platform.node)
    counter_s: float = field(default_factory=time.perf_counter)
    epoch_s: float = field(default_factory=time.time)


@dataclass(frozen=True, repr=False)
class Timeline(Recording):
    """What `ranks` did and when. `waits`: when a rank (with NCCL its GPU) was inside a communication call or wait()."""

    ranks: tuple[int, ...]
    events: list[TimelineEvent] = field(default_factory=list)
    waits: list[TimelineEvent] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

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
        for events in (merged.events, merged.waits):
            events.sort(key=lambda event: (event.rank, event.start_s))
        return merged

    def by_rank(self, rank: int) -> "Timeline":
        """What one rank did, on the same clock. ValueError for a rank that recorded nothing."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} recorded no timeline; recorded ranks: {list(self.ranks)}")
        return replace(self, ranks=(rank,), events=[event for event in self.events if event.rank == rank],
                       waits=[wait for wait in self.waits if wait.rank == rank])

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

    def save_chrome_trace(self, path: str | Path) -> None:
        """A file for https://ui.perfetto.dev or chrome://tracing: ranks are processes, lanes threads."""
        trace = {"traceEvents": trace_events(self.ranks, self.events + self.waits), "displayTimeUnit": "ms"}
        Path(path).write_text(json.dumps(trace, default=str))  # a label may be anything

    def finding(self) -> str:
        if not self.ranks:
            return "Timeline: nothing was recorded; wrap the code in `with record_timeline():`"
        who = f"{len(self.ranks)} ranks" if len(self.ranks) > 1 else f"rank {self.ranks[0]}"
        lanes = [(what, Counter(event.name for event in self.events if event.lane == lane))
                 for what, lane in (("spans", "compute"), ("communication calls", "communication"))]
        texts = [f"{counts.total()} {what}{named(counts)}" for what, counts in lanes]
        return f"Timeline of {who}: {'; '.join(texts)}"

    def _headline(self) -> tuple[str, str]:
        """What the picture shows, and the numbers behind it."""
        communication_s = self.total_s(lane="communication")
        if not communication_s:
            return "no communication", f"{human_seconds(self.duration_s)} in all"
        hidden = sum(self.hidden_s(rank) for rank in self.ranks) / communication_s
        longest = max(self.ranks, key=self.waiting_s)
        waits = f"rank {longest} waits longest, {self.waiting_s(longest) / self.duration_s:.0%} of the time"
        return (f"{hidden:.0%} of the communication is hidden behind computation; {waits}",
                f"{human_seconds(self.duration_s)} in all; on average "
                f"{human_seconds(communication_s / len(self.ranks))} of communication a rank")

    def png(self) -> bytes | None:
        if not self.events:
            return None
        from course_lib.runtime.instruments.timeline_picture import draw  # matplotlib is slow to import

        return draw(self.ranks, self.events, self.waits, self.duration_s, *self._headline())


def named(counts: Counter) -> str:
    """The first names with their counts, in brackets."""
    if not counts:
        return ""
    shown = [f"{count} {name}" for name, count in list(counts.items())[:MAX_NAMES]]
    return f" ({', '.join(shown)}{', ...' if len(counts) > MAX_NAMES else ''})"


@contextmanager
def record_timeline() -> Iterator[Timeline]:
    """Record the spans and the communication calls of this rank inside the block."""
    pending.install()
    timeline = Timeline((this_rank(),))
    recorder = TimelineRecorder(this_clock())
    failed = True
    with keeping(timeline):
        span_listeners.append(recorder)
        pending.listeners.append(recorder)
        try:
            yield timeline
            failed = False
        finally:
            span_listeners.remove(recorder)
            pending.listeners.remove(recorder)
            # After an error nobody waits for a GPU: what it still has to do may never end.
            for event in recorder.close(timeline.ranks[0], timeline.clock.counter_s, wait=not failed):
                (timeline.waits if event.lane == "waiting" else timeline.events).append(event)
