"""One launch from start to end: hand out the work, show what ranks print, follow what they say, clean up.

Where ranks are is asked in asking.py; what went wrong is found in went_wrong.py.
"""

import glob
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from course_lib.runtime.errors import LaunchError, LaunchInterrupted
from course_lib.runtime.ranks import diagnosis, went_wrong
from course_lib.runtime.ranks.asking import LaunchRanks
from course_lib.runtime.ranks.conversation import Conversation, read_command
from course_lib.runtime.ranks.messages import (
    DISMISS,
    Asks,
    Continues,
    Exited,
    Failed,
    Interrupted,
    Quit,
    Returned,
    Task,
    Typed,
    Whereabouts,
)
from course_lib.runtime.ranks.output import RankOutput, read_output
from course_lib.runtime.ranks.pools import ForkPool, WarmPool
from course_lib.runtime.ranks.rank_process import RankProcess
from course_lib.runtime.ranks.trace import Closed
from course_lib.runtime.results import Results

_ASK_EVERY_S = 0.25
_STILL_S = 3.0  # a rank that waits this long, on the same line, without using the CPU, counts as stuck
_LEAVE_S = 5.0  # time for a rank to close what it opened
_PASSES_S = 1.0  # a rank that was told to go on at a breakpoint and waits this long passes its turn
_ENDS = (Returned, Failed, Exited, Quit)


class Supervisor:
    """The caller's thread only shows output and waits, so that an interrupt finds nothing half done; a thread of the
    launch's own talks to the ranks and decides how it ends."""

    def __init__(self, ours: "ForkPool | WarmPool", tasks: list[Task], env: dict[str, str], timeout_s: float) -> None:
        self.pool = ours
        self.tasks = tasks
        self.env = env
        self.timeout_s = timeout_s
        self.ranks = LaunchRanks(ours, tasks)
        self.events = self.ranks.events
        self.lookout = self.ranks.lookout
        # (rank, stream, bytes); None: the launch has ended. Bounded: a rank that prints without end is slowed down to
        # what the notebook shows, by its full pipe, and does not fill the notebook's memory.
        self.shown: queue.Queue = queue.Queue(maxsize=1000)
        self.reported: set[int] = set()  # ranks whose function has ended
        self.conversation = Conversation(lambda rank, text: self.shown.put((rank, None, text)), self.lookout.tell)
        self.error: BaseException | None = None

    # The caller's thread

    def results(self) -> Results:
        """Run the tasks and return what they return; raises how they ended otherwise."""
        output = RankOutput(len(self.tasks))
        thread = threading.Thread(target=self._run, name="course_lib launch")
        started = ended = interrupted = False
        self.pool.hurried.clear()
        while not ended:
            try:
                if not started:
                    started = True
                    thread.start()
                ended = self._show(output)
            except KeyboardInterrupt:
                interrupted = True
                self.pool.hurried.set()
                self.events.put((-1, Interrupted()))
        output.close()
        thread.join()
        if self.error is not None:
            raise self.error.with_traceback(None)
        if interrupted:  # it came as the last rank returned; the cell around launch must still stop
            raise KeyboardInterrupt
        pairs = [cloudpickle.loads(self.ranks.returned[task.rank].payload) for task in self.tasks]
        return Results([result for result, _ in pairs], [logs for _, logs in pairs])

    def _show(self, output: RankOutput) -> bool:
        item = self.shown.get()
        if item is None:
            return True
        rank, stream, content = item
        if stream is None:  # a prompt
            self.events.put((rank, Typed(read_command(rank, content))))
        else:
            output.add(rank, stream, content)
        return False

    # The launch's own thread

    def _run(self) -> None:
        try:
            self._run_ranks()
        except BaseException as error:  # in tidying up: the caller must not wait for ever
            self.error = self.error or error
        self.shown.put(None)

    def _run_ranks(self) -> None:
        readers: list[threading.Thread] = []
        try:
            for process in self.pool.processes(len(self.tasks), self.env, self.tasks[0].call):
                self.ranks.processes.append(process)
                # A thread for each stream: a rank whose pipe is full would wait until somebody has read it.
                readers.append(start_reader(self._read_messages, process))
                readers += [start_reader(read_output, process, name, self.shown) for name in process.streams]
            self._follow()
        except BaseException as error:
            self.error = error
        try:
            self.pool.finish(self._dismiss_reported_ranks(), _LEAVE_S)
        except (LaunchError, LaunchInterrupted) as error:  # the pool's own process is gone
            self.error = self.error or error
        for reader in readers:  # for a while: a process that could not be ended may hold a pipe open
            reader.join(timeout=5.0)
        self._remove_files()  # before the pool may leave with its folder
        self.pool.release()

    def _remove_files(self) -> None:
        for path in glob.glob(self.tasks[0].store + "*"):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    def _dismiss_reported_ranks(self) -> set[int]:
        """Ranks whose function has ended, well or not, may leave; the others can only be stopped."""
        reported = self.reported.copy()  # the readers go on adding to it
        for rank in reported:
            self.lookout.tell(rank, DISMISS)
        return reported

    def _read_messages(self, process: RankProcess) -> None:
        """Give the rank its task, which may be long and its rank slow to take it, and hear what comes of it."""
        message: Any = None
        try:
            process.send(self.tasks[process.rank])
            self.lookout.unanswered.discard(process.rank)  # not before: a rank takes its first message for its task
            while not isinstance(message, _ENDS):
                message = process.receive()
                if isinstance(message, _ENDS):
                    self.reported.add(process.rank)
                self.events.put((process.rank, message))
        except (EOFError, OSError):
            self.events.put((process.rank, Closed()))

    def _follow(self) -> None:
        """Until every rank has returned; raises what went wrong otherwise."""
        now = time.monotonic()
        deadline, next_question = now + self.timeout_s, now + _ASK_EVERY_S
        while not self.ranks.all_returned:
            before, now = now, time.monotonic()
            if self.conversation.goes_on:  # nobody is late while the reader debugs
                deadline += now - before
            if now >= deadline and (late := went_wrong.timeout(self.ranks, self.timeout_s, self._handle)):
                raise late
            if now >= next_question:
                self._look_around()
                next_question = now + _ASK_EVERY_S
            try:
                rank, message = self.events.get(timeout=max(0.0, min(next_question, deadline) - now))
            except queue.Empty:
                continue
            self._handle(rank, message)

    def _handle(self, rank: int, message: Any) -> None:
        """Take in what a rank or the reader says; raises what ends the launch."""
        match message:
            case Whereabouts():
                self.lookout.note(rank, message)
            case Returned():
                self.ranks.returned[rank] = message
                self.conversation.end_turn(rank)
            case Asks():
                self.conversation.take_question(rank, message)
            case Continues():
                self.conversation.end_turn(rank)
            case Typed():
                self.lookout.restart_clocks()
                self.conversation.take_line(rank, message.line)
            case Quit():
                raise diagnosis.reader_quit(rank, message)
            case Failed():
                raise went_wrong.failure(self.ranks, rank, message, self._handle)
            case Exited():
                raise diagnosis.rank_exit(rank, message)
            case Interrupted():
                raise went_wrong.interrupt(self.ranks, self._handle)
            case Closed():
                raise went_wrong.death(self.ranks, rank)

    def _look_around(self) -> None:
        went_wrong.raise_silent_death(self.ranks)
        self.ranks.ask()
        self.conversation.pass_on(lambda rank: self.lookout.still_for_s(rank) > _PASSES_S)
        if self.conversation.stands_still:
            return
        if self.lookout.all_still_for_s() >= _STILL_S:
            raise diagnosis.deadlock(self.lookout.sightings(), _STILL_S)


def start_reader(read: Callable, *arguments: Any) -> threading.Thread:
    """A daemon thread that runs read(*arguments): a rank that never closes its pipe does not keep the notebook alive.
    """
    thread = threading.Thread(target=read, args=arguments, name="course_lib reader", daemon=True)
    thread.start()
    return thread
