"""The ranks of a launch or a team: their processes from start to end, and where those are that run one call.

Ranks are asked where they are, by message, and by signal where they cannot answer; their answers say how long each has
waited on one line. Only what was seen counts. On a machine that has stood still, or had no core for a rank, time has
passed that nobody looked into: it says nothing of ranks.
"""

import glob
import math
import os
import queue
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from course_lib.runtime.ranks.counts import are_in_step
from course_lib.runtime.ranks.frames import Frame, frames_of_dump
from course_lib.runtime.ranks.messages import ASK, DISMISS, Absent, Counts, Returned, Task, Whereabouts
from course_lib.runtime.ranks.processes import RankProcess

if TYPE_CHECKING:
    from course_lib.runtime.ranks.pools import BranchPool, ForkPool, WarmPool

LEAVE_S = 5.0  # time for a rank to close what it opened
_STILL_CPU = 0.2  # share of a core below which a waiting rank counts as not using the CPU
_TIMES = 6  # that each rank was seen still, before all count as stuck, however long that took
_ANSWER_S = 0.5  # a rank that works for so long and does not say where it is holds the interpreter ...
_LATEST_S = 3.0  # ... or stands still and holds it; by then also a rank that waited for a core has said it
_DUMP_S = 2.0  # by then a signal has made it write that down, also where it waits for a core


def _cpu_s(pid: int) -> float:
    """What a process has used; without end where it has ended."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return math.inf


class Crew:
    """`task` has what all its ranks and calls have in common. `stays`: more calls may come after one that has ended."""

    def __init__(self, pool: "BranchPool | ForkPool | WarmPool", task: Task, env: dict[str, str], stays: bool = False):
        self.pool, self.task, self.env, self.stays = pool, task, env, stays
        self.processes: list[RankProcess] = []
        self.counts: dict[int, Counts] = {}  # rank -> its communication calls, as it last said
        self.lost: set[int] = set()  # ranks whose processes have ended
        self.forced: set[int] = set()  # of those the ones that had to be ended, since they did not leave a call
        self.group = 0

    def make_tasks(self, call: bytes, ranks: Collection[int] | None = None, group: int | None = None) -> list[Task]:
        """The same call for each of `ranks` (None: all), in the process group of that number (None: the newest)."""
        group = self.group if group is None else group
        return [replace(self.task, rank=rank, call=call, group=group) for rank in range(self.task.world_size)
                if ranks is None or rank in ranks]

    def start(self, tasks: list[Task]) -> Iterator[RankProcess]:
        """The processes that run `tasks`: with the first ones they are started, one after another, so that the first
        can start its work while the next is forked.
        """
        if self.processes:
            yield from (self.processes[task.rank] for task in tasks)
            return
        for process in self.pool.processes(self.task.world_size, self.env, tasks[0].call):
            if self.stays and not process.end_of_output:
                process.end_of_output = f"\0course_lib {secrets.token_hex(8)} {process.rank}\0".encode()
            self.processes.append(process)
            yield process

    def give(self, task: Task) -> None:
        """Send a task to its rank. OSError where the rank has ended."""
        process = self.processes[task.rank]
        process.connection.send(replace(task, mark=process.end_of_output) if self.stays else task)

    def exit_code(self, rank: int) -> int | None:
        return self.pool.exit_code(self.processes[rank])

    def is_in_step(self) -> bool:
        """Whether every rank has made the same calls on each group, and as many sends as receives: then no message of
        one can be taken for another one's later on.
        """
        return are_in_step(self.counts)

    def finish(self, ranks: Collection[int]) -> None:
        """End all processes and whatever they have started; those of `ranks`, whose call has ended, may leave by
        themselves. LaunchError where the pool's own process is gone.
        """
        for rank in ranks:
            self.processes[rank].tell(DISMISS)
        self.pool.finish(set(ranks), LEAVE_S)

    def clear_up(self) -> None:
        """When nobody reads from the ranks any more: their files go, and the pool may go."""
        for path in glob.glob(glob.escape(self.task.store) + "*"):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        self.pool.release()  # after the files: it may leave with its folder


@dataclass(frozen=True)
class Still:
    """Since when a rank was seen to wait on one line without using the CPU, until when, and how often again."""

    since: float  # time.monotonic(), which is one clock for all processes of a machine
    until: float
    times: int = 0

    def until_now(self, now_s: float) -> "Still":
        """The same rank, seen so once more."""
        return Still(self.since, now_s, self.times + 1)


class LaunchRanks:
    """What is known of the ranks of `crew` that run one call."""

    def __init__(self, crew: Crew, tasks: list[Task]) -> None:
        self.crew = crew
        self.tasks = {task.rank: task for task in tasks}
        self.events: queue.Queue = queue.Queue()  # (rank, message of messages.py, or Closed)
        self.returned: dict[int, Returned] = {}
        self.returned_s = -math.inf  # when the last of them did, by time.monotonic()
        self.absent = {rank: Absent(crew.counts.get(rank, {})) for rank in range(crew.task.world_size)
                       if rank not in self.tasks}  # they take no part in the call
        self.seen: dict[int, Whereabouts] = {}
        self.still: dict[int, Still] = {}  # those that wait
        self.unmoved: dict[int, Still] = {}  # all, whether they wait or compute, and whatever CPU they use
        self.unanswered = set(self.tasks)  # ranks not to be asked now; at first they have no task yet

    @property
    def over_nccl(self) -> bool:
        """Whether calls between ranks return at once, and GPUs wait."""
        return self.crew.task.backend == "nccl"

    def unfinished_ranks(self) -> list[int]:
        return [rank for rank in self.tasks if rank not in self.returned]

    def ask(self, ranks: Collection[int] | None = None) -> None:
        """`ranks` (None: all unfinished ones), unless a question is open, where they are; answers come as events."""
        for rank in self.unfinished_ranks() if ranks is None else ranks:
            if rank not in self.unanswered:
                self.unanswered.add(rank)
                self.crew.processes[rank].tell(ASK)

    def note_return(self, rank: int, returned: Returned, now_s: float) -> None:
        self.returned[rank], self.returned_s = returned, now_s

    def note(self, rank: int, now: Whereabouts) -> None:
        """Take a rank's answer: has it moved since the last one, or waited in the same call?"""
        before = self.seen.get(rank)
        self.seen[rank] = now
        self.unanswered.discard(rank)
        still = self.still.pop(rank, None)
        if now.waits_in is not None:
            goes_on = still and before and now.is_still_since(before, _STILL_CPU)
            self.still[rank] = still.until_now(now.clock_s) if goes_on else Still(now.clock_s, now.clock_s)
        unmoved = self.unmoved.get(rank)
        goes_on = unmoved and before and now.is_unmoved_since(before)
        self.unmoved[rank] = unmoved.until_now(now.clock_s) if goes_on else Still(now.clock_s, now.clock_s)

    def still_for_s(self, rank: int) -> float:
        """How long it was seen to wait on the same line without using the CPU; 0 where it does not."""
        still = self.still.get(rank)
        return 0.0 if still is None else still.until - still.since

    def all_still_for_s(self) -> float:
        """How long all that have not finished were seen to wait so at the same time; 0 or less where they did not."""
        return self._all_for_s(self.still)

    def all_unmoved_for_s(self) -> float:
        """How long all that have not finished were seen on the same lines, perhaps computing."""
        return self._all_for_s(self.unmoved)

    def _all_for_s(self, seen: Mapping[int, Still]) -> float:
        still = [seen.get(rank) for rank in self.unfinished_ranks()]
        if not still or any(each is None or each.times < _TIMES for each in still):
            return 0.0
        # The stretch in which all were seen still at the same time: two ranks that wait in turn are no deadlock. One
        # that has just returned moved until then, and what it sent may be on its way.
        return min(each.until for each in still) - max(self.returned_s, *(each.since for each in still))

    def restart_clocks(self) -> None:
        """Count the waiting of ranks from now on: the time up to now was the reader's."""
        now = time.monotonic()
        self.still = {rank: Still(now, now) for rank in self.still}
        self.unmoved = {rank: Still(now, now) for rank in self.unmoved}

    def sightings(self) -> dict[int, Whereabouts | Returned | Absent]:
        """The last answer of each rank that has given one, the returns, and who takes no part."""
        return {**self.absent, **self.seen, **self.returned}

    def find_silent(self, handle: Callable[[int, Any], None]) -> dict[int, tuple[Frame, ...]]:
        """Ask and wait: where the ranks are that do not answer in time. `handle` takes the answers of the others."""
        return self._frames_by_signal(self._ask_and_wait(handle))

    def _ask_and_wait(self, handle: Callable[[int, Any], None]) -> list[int]:
        """Ask every unfinished rank; returns those that did not answer in time."""
        silent, asked_s = set(self.unfinished_ranks()), time.monotonic()
        until = {rank: _cpu_s(self.crew.processes[rank].pid) + _ANSWER_S for rank in silent}
        while any(_cpu_s(self.crew.processes[rank].pid) < until[rank] for rank in silent) and (
                time.monotonic() < asked_s + _LATEST_S):
            self.ask(silent)  # again and again, for one that takes its task in this moment could not be asked yet
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
        while (any(not frames[rank] and self.crew.exit_code(rank) is None for rank in ranks)
               and time.monotonic() < deadline):
            time.sleep(0.02)
            frames = {rank: seen or frames_of_dump(self.tasks[rank].dump) for rank, seen in frames.items()}
        return frames
