"""What `record_timeline` hears: spans and calls on process groups, turned into events."""

import time
from typing import Any

from course_lib.runtime.instruments import pending
from course_lib.runtime.instruments.timeline_event import TimelineEvent


class TimelineRecorder:
    """Turns what spans and process-group calls report into events."""

    def __init__(self, timeline: Any) -> None:
        self.timeline = timeline
        self.rank = timeline.ranks[0]
        self.open_spans: list[tuple[str, dict[str, Any], float]] = []
        self.open_calls: dict[int, pending.Call] = {}

    def now(self) -> float:
        return time.perf_counter() - self.timeline.clock.counter_s

    def span_started(self, name: str, labels: dict[str, Any]) -> None:
        self.open_spans.append((name, labels, self.now()))

    def span_ended(self) -> None:
        end_s = self.now()
        if self.open_spans:  # empty when the recorder was closed inside the span
            name, labels, start_s = self.open_spans.pop()
            event = TimelineEvent(self.rank, "compute", name, start_s, end_s, labels, len(self.open_spans))
            self.timeline.events.append(event)

    def started(self, call: pending.Call) -> None:
        self.open_calls[call.number] = call

    def finished(self, call: pending.Call) -> None:
        end_s = self.now()
        if self.open_calls.pop(call.number, None):  # None when the call began before the recording
            self.timeline.events.append(self.communication(call, end_s, {}))

    def waited(self, call: pending.Call, start_s: float) -> None:
        start_s -= self.timeline.clock.counter_s
        self.timeline.waits.append(TimelineEvent(self.rank, "waiting", call.op, start_s, self.now()))

    def communication(self, call: pending.Call, end_s: float, labels: dict[str, Any]) -> TimelineEvent:
        partner = {"group": call.group} if call.peer is None else {"peer": call.peer}
        labels = {"bytes": call.num_bytes, **partner, **labels}
        start_s = call.started_s - self.timeline.clock.counter_s
        return TimelineEvent(self.rank, "communication", call.op, start_s, end_s, labels)

    def close(self) -> None:
        """What has not ended yet ends here."""
        while self.open_spans:
            self.span_ended()
        for call in list(self.open_calls.values()):
            self.timeline.events.append(self.communication(call, self.now(), {"unfinished": True}))
        self.open_calls.clear()
        self.timeline.events.sort(key=lambda event: event.start_s)
