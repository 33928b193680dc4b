"""Where everybody is: ranks are asked, and what they answer says how long each has waited in one place."""

import time
from typing import Any

from course_lib.runtime.ranks.messages import ASK, Returned, Whereabouts
from course_lib.runtime.ranks.rank_process import RankProcess

_STILL_CPU = 0.2  # share of a core below which a waiting rank counts as not using the CPU
_NEVER = float("inf")


class Lookout:
    """`processes` and `returned` are the supervisor's, which fills them."""

    def __init__(self, ranks: list[int], processes: list[RankProcess], returned: dict[int, Returned]) -> None:
        self.ranks = ranks
        self.processes = processes
        self.returned = returned
        self.seen: dict[int, Whereabouts] = {}
        self.still_since: dict[int, float] = {}
        self.unanswered = set(ranks)  # ranks not to be asked now; at first they have no task yet

    def ask(self, rank: int) -> None:
        if rank not in self.unanswered:
            self.unanswered.add(rank)
            self.tell(rank, ASK)

    def tell(self, rank: int, message: Any) -> None:
        try:
            self.processes[rank].send(message)
        except OSError:  # it has ended: the reader of its messages tells
            pass

    def note(self, rank: int, now: Whereabouts) -> None:
        before = self.seen.get(rank)
        self.seen[rank] = now
        self.unanswered.discard(rank)
        if now.waits_in is None or before is None or not now.is_still_since(before, _STILL_CPU):
            self.still_since[rank] = time.monotonic() if now.waits_in is not None else _NEVER

    def still_for_s(self, rank: int) -> float:
        """How long it has waited on the same line without using the CPU; below 0 where it does not."""
        return time.monotonic() - self.still_since.get(rank, _NEVER)

    def restart_clocks(self) -> None:
        """Of those that wait: the time up to now was the reader's."""
        now = time.monotonic()
        self.still_since = {rank: since if since == _NEVER else now for rank, since in self.still_since.items()}

    def unfinished(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.returned]

    def silent(self) -> list[int]:
        """Unfinished ranks that have not answered yet."""
        return sorted(self.unanswered & set(self.unfinished()))

    def sightings(self) -> dict[int, Whereabouts | Returned]:
        """The last answer of each rank that has given one, and the returns."""
        return {**self.seen, **self.returned}
