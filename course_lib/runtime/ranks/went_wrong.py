"""What went wrong in a launch, once a rank has failed, died or is late: hears the other ranks out, then says it.

diagnosis.py finds the words; here is the waiting that comes before. Several ranks often end together, and all but one
of them only because the first one did.

Hang detection: ranks are asked where they are, and their answers say how long each has waited on one line.

Only what was seen counts. On a machine that has stood still, or had no core for a rank, time has passed that nobody
looked into: it says nothing of ranks.

The ranks of one call, and asking them where they are: by message, and by signal where they cannot answer.
"""

import queue
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle

from course_lib.runtime.errors import LaunchInterrupted, LaunchTimeout, RankDied, RankFailed
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.messages import ASK, Absent, Failed, Returned, Task, Whereabouts
from course_lib.runtime.ranks.places import Frame, frames_of_dump
from course_lib.runtime.ranks.pools import Crew
from course_lib.runtime.ranks.processes import RankProcess

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


_ANSWER_S = 0.5  # a rank that does not say within this time where it is holds the interpreter
_DUMP_S = 2.0  # by then a signal has made it write that down, also where it waits for a core


class LaunchRanks:
    """What is known of the ranks of `crew` that run one call. The supervisor fills `returned`."""

    def __init__(self, crew: Crew, tasks: list[Task]) -> None:
        self.crew = crew
        self.tasks = {task.rank: task for task in tasks}
        self.events: queue.Queue = queue.Queue()  # (rank, message of messages.py, or Closed)
        self.returned: dict[int, Returned] = {}
        absent = {rank: Absent(crew.counts.get(rank, {})) for rank in range(crew.task.world_size)
                  if rank not in self.tasks}
        self.lookout = Lookout(list(self.tasks), crew.processes, self.returned, absent)

    @property
    def all_returned(self) -> bool:
        return len(self.returned) == len(self.tasks)

    def exit_code(self, rank: int) -> int | None:
        """None while the rank's process is alive."""
        return self.crew.exit_code(rank)

    def ask(self) -> None:
        """Every unfinished rank, where it is; its answer comes as an event."""
        for rank in self.lookout.unfinished_ranks():
            self.lookout.ask(rank)

    def silent_frames(self, handle: Callable[[int, Any], None]) -> dict[int, tuple[Frame, ...]]:
        """Ask and wait: where the ranks are that do not answer in time. `handle` takes the answers of the others."""
        return self._frames_by_signal(self._ask_and_wait(handle))

    def _ask_and_wait(self, handle: Callable[[int, Any], None]) -> list[int]:
        """Ask every unfinished rank; returns those that did not answer in time."""
        silent, until = set(self.lookout.unfinished_ranks()), time.monotonic() + _ANSWER_S
        while silent and time.monotonic() < until:
            for rank in silent:  # again and again, for one that takes its task in this moment could not be asked yet
                self.lookout.ask(rank)
            try:
                rank, message = self.events.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(message, (Whereabouts, Returned)):
                handle(rank, message)
                silent.discard(rank)
        return sorted(silent)

    def _frames_by_signal(self, ranks: list[int]) -> dict[int, tuple[Frame, ...]]:
        """Where ranks are that hold the interpreter: faulthandler writes it down without the interpreter's help."""
        frames: dict[int, tuple[Frame, ...]] = dict.fromkeys(ranks, ())
        if not hasattr(signal, "SIGUSR1"):
            return frames
        for rank in ranks:
            self.crew.pool.signal(self.crew.processes[rank], signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_S
        while (any(not frames[rank] and self.exit_code(rank) is None for rank in ranks)
               and time.monotonic() < deadline):
            time.sleep(0.02)
            frames = {rank: seen or frames_of_dump(self.tasks[rank].dump) for rank, seen in frames.items()}
        return frames


_ECHO_S = 1.0  # how long "connection closed" may be the echo of another rank's end that we have not heard of yet
_TOGETHER_S = 0.1  # failures this close in time are told as one

Handler = Callable[[int, Any], None]  # the supervisor's: takes what a rank says, and raises where that ends the launch


def death(ranks: LaunchRanks, rank: int) -> RankDied:
    """The connection of `rank` has closed, or its process has ended."""
    deadline = time.monotonic() + 2.0
    while (code := ranks.exit_code(rank)) is None and time.monotonic() < deadline:
        time.sleep(0.005)  # its connection closes a moment before the process can be reaped
    last_words = frames_of_dump(ranks.tasks[rank].dump)  # written when a library aborts or memory is violated
    return diagnosis.rank_death(rank, code, last_words, ranks.lookout.seen.get(rank))


def raise_silent_death(ranks: LaunchRanks) -> None:
    """Of ranks whose connection is held open by a process that they started, so that its end tells nothing."""
    for rank in ranks.lookout.unfinished_ranks():
        if ranks.exit_code(rank) is not None and ranks.events.empty():
            raise death(ranks, rank)


def failure(ranks: LaunchRanks, first: int, failed: Failed, handle: Handler) -> RankFailed:
    """Which of the failures that arrive together is the story, and which are only its echo.

    Raises what `handle` raises where a death, an exit or an interrupt comes in between: then that is the story.
    """
    failures = {first: failed}
    ranks.ask()
    until = time.monotonic() + (_ECHO_S if diagnosis.is_echo(failed) else _TOGETHER_S)
    while len(failures) + len(ranks.returned) < len(ranks.tasks) and time.monotonic() < until:
        try:
            rank, message = ranks.events.get(timeout=_TOGETHER_S)
        except queue.Empty:
            raise_silent_death(ranks)
            continue
        if isinstance(message, Failed):
            failures[rank] = message
            if not diagnosis.is_echo(message):
                until = min(until, time.monotonic() + _TOGETHER_S)
        elif isinstance(message, (Returned, Whereabouts)) or all(map(diagnosis.is_echo, failures.values())):
            handle(rank, message)  # a death, an exit or an interrupt: the failures so far were its echo
    return _first_cause(ranks, failures)


def _first_cause(ranks: LaunchRanks, failures: dict[int, Failed]) -> RankFailed:
    true = {rank: failed for rank, failed in failures.items() if not diagnosis.is_echo(failed)} or failures
    kind = next(iter(true.values())).type_name  # of the first that arrived
    alike = sorted(rank for rank, failed in true.items() if failed.type_name == kind)
    rank = alike[0]
    exception = None
    if true[rank].exception is not None:
        try:
            exception = cloudpickle.loads(true[rank].exception)
        except Exception:  # an exception class that cannot be rebuilt: its text is in the message anyway
            exception = None
    sightings = {r: seen for r, seen in ranks.lookout.sightings().items() if r not in failures}
    return diagnosis.rank_failure(rank, true[rank], alike[1:], sightings, exception)


def timeout(ranks: LaunchRanks, timeout_s: float, handle: Handler) -> LaunchTimeout | None:
    """None where the last rank returned while all were asked where they are."""
    silent = ranks.silent_frames(handle)
    if ranks.all_returned:
        return None
    return diagnosis.launch_timeout(ranks.lookout.sightings(), silent, timeout_s)


def interrupt(ranks: LaunchRanks, handle: Handler) -> LaunchInterrupted:
    """The reader has interrupted the cell: where every rank was."""
    silent = ranks.silent_frames(handle)
    return LaunchInterrupted(diagnosis.interruption(ranks.lookout.sightings(), silent))
