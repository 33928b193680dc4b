"""What a timeline is made of."""

from dataclasses import dataclass, field
from typing import Any


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
