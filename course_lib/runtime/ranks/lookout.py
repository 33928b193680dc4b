"""Hang detection: ranks are asked where they are, and their answers say how long each has waited on one line.

Only what was seen counts. On a machine that has stood still, or had no core for a rank, time has passed that nobody
looked into: it says nothing of ranks.
"""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from course_lib.runtime.ranks.messages import ASK, Absent, Returned, Whereabouts
from course_lib.runtime.ranks.rank_process import RankProcess

_STILL_CPU = 0.2  # share of a core below which a waiting rank counts as not using the CPU
_TIMES = 6  # that each rank was seen still, before all count as stuck, however long that took


@dataclass(frozen=True)
class Still:
    """Since when a rank was seen to wait on one line without using the CPU, until when, and how often again."""

    since: float  # time.monotonic(), which is one clock for all processes of a machine
    until: float
    times: int = 0


class Lookout:
    """`processes` are those of all ranks, `ranks` the numbers of those that are at work. `returned` is the supervisor's
    to fill; `absent` ranks take no part.
    """

    def __init__(self, ranks: list[int], processes: list[RankProcess], returned: dict[int, Returned],
                 absent: dict[int, Absent] | None = None) -> None:
        self.ranks = ranks
        self.processes = processes
        self.returned = returned
        self.absent = absent or {}
        self.seen: dict[int, Whereabouts] = {}
        self.still: dict[int, Still] = {}  # those that wait
        self.unanswered = set(ranks)  # ranks not to be asked now; at first they have no task yet

    def ask(self, rank: int) -> None:
        """Ask a rank where it is, unless a question is open."""
        if rank not in self.unanswered:
            self.unanswered.add(rank)
            self.tell(rank, ASK)

    def tell(self, rank: int, message: Any) -> None:
        """Send a message to a rank; nothing where it has ended."""
        with suppress(OSError):  # it has ended: the reader of its messages tells
            self.processes[rank].send(message)

    def note(self, rank: int, now: Whereabouts) -> None:
        """Take a rank's answer: has it moved since the last one, or waited in the same call?"""
        before = self.seen.get(rank)
        self.seen[rank] = now
        self.unanswered.discard(rank)
        still = self.still.pop(rank, None)
        if now.waits_in is not None:
            goes_on = still is not None and before is not None and now.is_still_since(before, _STILL_CPU)
            self.still[rank] = (Still(still.since, now.clock_s, still.times + 1) if goes_on else
                                Still(now.clock_s, now.clock_s))

    def still_for_s(self, rank: int) -> float:
        """How long it was seen to wait on the same line without using the CPU; 0 where it does not."""
        still = self.still.get(rank)
        return 0.0 if still is None else still.until - still.since

    def all_still_for_s(self) -> float:
        """How long all that have not finished were seen to wait so at the same time; 0 or less where they did not."""
        still = [self.still.get(rank) for rank in self.unfinished_ranks()]
        if not still or any(each is None or each.times < _TIMES for each in still):
            return 0.0
        # The stretch in which all were seen still at the same time: two ranks that wait in turn are no deadlock.
        return min(each.until for each in still) - max(each.since for each in still)

    def restart_clocks(self) -> None:
        """Count the waiting of ranks from now on: the time up to now was the reader's."""
        now = time.monotonic()
        self.still = {rank: Still(now, now) for rank in self.still}

    def unfinished_ranks(self) -> list[int]:
        """Ranks that have not returned."""
        return [rank for rank in self.ranks if rank not in self.returned]

    def sightings(self) -> dict[int, Whereabouts | Returned | Absent]:
        """The last answer of each rank that has given one, the returns, and who takes no part."""
        return {**self.absent, **self.seen, **self.returned}
