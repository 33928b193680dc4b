"""The ranks of one call, and asking them where they are: by message, and by signal where they cannot answer."""

import queue
import signal
import time
from collections.abc import Callable
from typing import Any

from course_lib.runtime.ranks.crew import Crew
from course_lib.runtime.ranks.lookout import Lookout
from course_lib.runtime.ranks.messages import Absent, Returned, Task, Whereabouts
from course_lib.runtime.ranks.places import Frame, frames_of_dump

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
