"""One call from start to end: hand out the work, show what ranks print, follow what they say, clean up.

A launch is one call, after which its ranks go. The ranks of a team stay: whatever goes wrong, they are brought back to
where they wait for the next call, and those that do not come are ended.

Where ranks are is asked in crew.py; what went wrong is found in diagnosis.py.
"""

import queue
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle

from course_lib.runtime.errors import LaunchError, LaunchInterrupted
from course_lib.runtime.ranks import diagnosis, messages
from course_lib.runtime.ranks.crew import Crew, LaunchRanks
from course_lib.runtime.ranks.debugging import Conversation, read_command
from course_lib.runtime.ranks.messages import STOP, Interrupted, Task, Typed, Whereabouts
from course_lib.runtime.ranks.processes import Closed, RankProcess, hold_interrupts
from course_lib.runtime.ranks.showing import RankOutput, read_output

_ASK_EVERY_S = 0.25
_STILL_S = 3.0  # a rank that waits this long, on the same line, without using the CPU, counts as stuck
_COMES_BACK_S = 3.0  # time for a rank that stays to leave a call that has failed
_LOOKS_EVERY_S = 0.5  # the caller, whether the call has ended without its noticing
_READ_WITHIN_S = 5.0  # what is in all pipes when a call ends
_PASSES_S = 1.0  # a rank that was told to go on at a breakpoint and waits this long passes its turn
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows, where either ends a process
_ENDS = (messages.Returned, messages.Failed, messages.Quit)


class Supervisor:
    """The caller's thread only shows output and waits, so that an interrupt finds nothing half done; a thread of the
    call's own talks to the ranks and decides how it ends.
    """

    def __init__(self, crew: Crew, tasks: list[Task], timeout_s: float) -> None:
        self.crew, self.timeout_s = crew, timeout_s
        self.ranks = LaunchRanks(crew, tasks)
        self.tasks, self.events = self.ranks.tasks, self.ranks.events
        # (rank, stream, bytes); None: the launch has ended. Bounded: a rank that prints without end is slowed down to
        # what the notebook shows, by its full pipe, and does not fill the notebook's memory.
        self.shown: queue.Queue = queue.Queue(maxsize=1000)
        self.given: set[int] = set()  # ranks that have their task
        self.reported: dict[int, Any] = {}  # rank -> how its function has ended
        self.closed: set[int] = set()  # ranks from which no more messages come
        self.began_s = time.monotonic()
        self.conversation = Conversation(lambda rank, text: self.shown.put((rank, None, text)),
                                         lambda rank, typed: crew.processes[rank].tell(typed))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_beside, name="course_lib launch")
        self._over = threading.Event()

    @property
    def has_begun(self) -> bool:
        """Whether ranks may have been given their tasks."""
        return self._thread.ident is not None

    # The caller's thread

    def run(self) -> tuple[list[Any], list[list[Any]]]:
        """Run the tasks: (what they return, what each rank recorded). Raises how they ended otherwise."""
        output = RankOutput(self.crew.task.world_size)
        ended = interrupted = False
        self.crew.pool.hurried.clear()
        while not ended:
            try:
                if not self.has_begun:
                    with hold_interrupts():
                        self._thread.start()
                ended = self._show(output)
            except KeyboardInterrupt:
                interrupted = True
                self.crew.pool.hurried.set()
                self.events.put((-1, Interrupted()))
        output.close()
        self._thread.join()
        if self.error is not None:
            raise self.error.with_traceback(None)
        if interrupted:  # it came as the last rank returned; the cell around launch must still stop
            raise KeyboardInterrupt
        pairs = [cloudpickle.loads(self.ranks.returned[rank].payload) for rank in self.tasks]
        return [result for result, _ in pairs], [logs for _, logs in pairs]

    def _show(self, output: RankOutput) -> bool:
        try:
            item = self.shown.get(timeout=_LOOKS_EVERY_S)
        except queue.Empty:  # an interrupt may have come as the last item, None, was taken
            return self._over.is_set() and self.shown.empty()
        if item is None:
            return True
        rank, stream, content = item
        if stream is None:  # a prompt
            self.events.put((rank, Typed(read_command(rank, content))))
        else:
            output.add(rank, stream, content)
        return False

    # The call's own thread

    def _run_beside(self) -> None:
        try:
            self._start_and_follow()
        except BaseException as error:  # in tidying up: the caller must not wait for ever
            self.error = self.error or error
        self._over.set()
        self.shown.put(None)

    def _pass_on(self, rank: int, stream: str, data: bytes) -> None:
        """From a reader of output to the caller's thread; nowhere once the call is over, when nobody takes it there."""
        while data and not self._over.is_set():
            with suppress(queue.Full):
                self.shown.put((rank, stream, data), timeout=_LOOKS_EVERY_S)
                return

    def _start_and_follow(self) -> None:
        readers: list[threading.Thread] = []
        started: list[RankProcess] = []
        try:
            try:
                for process in self.crew.start(list(self.tasks.values())):
                    started.append(process)
                    readers.append(start_reader(self._read_messages, process))
            finally:
                # Once all ranks are at work: a thread's start takes as long as it takes to get a core. One for each
                # stream, since a rank whose pipe is full would wait until somebody has read it.
                readers += [start_reader(read_output, process, name, self._pass_on)
                            for process in started for name in process.streams]
            self._follow()
        except BaseException as error:
            self.error = error
        try:
            if self.crew.stays:
                self._bring_back()
            else:  # the readers go on adding to what is reported
                self.crew.finish(list(self.reported))
        except (LaunchError, LaunchInterrupted) as error:  # the pool's own process is gone
            self.error = self.error or error
        until = time.monotonic() + _READ_WITHIN_S  # a process that could not be ended may hold pipes open
        for reader in readers:
            reader.join(timeout=max(0.0, until - time.monotonic()))
        if not self.crew.stays:
            self.crew.clear_up()

    def _bring_back(self) -> None:
        """Every rank to where it waits for its next call. What cannot be stopped is ended; who has ended is lost."""
        stopped, until = False, time.monotonic() + _COMES_BACK_S
        while (out := self._ranks_out()) and time.monotonic() < until:
            stopped = True
            for rank in out:
                if rank in self.given:  # not in the middle of its task, which has not got through to it yet
                    self.crew.processes[rank].tell(STOP)
            with suppress(queue.Empty):
                self.events.get(timeout=_ASK_EVERY_S)
        self.crew.forced |= set(out)
        self.crew.lost |= self.closed | set(out)
        if self.error is not None and self.crew.pool.has_ended:  # who had come back, too: no message tells of that end
            self.crew.lost |= set(range(self.crew.task.world_size))
        for rank in out:
            self.crew.pool.signal(self.crew.processes[rank], _KILL)
        reports = dict(self.reported)  # a copy: the readers may add to it
        self.crew.counts |= {rank: report.counts for rank, report in reports.items()}
        cut_off = stopped or self.closed or any(getattr(each, "in_communication", False) for each in reports.values())
        if self.error is not None and (cut_off or not self.crew.is_in_step()):
            self.crew.group += 1
            self.crew.counts.clear()

    def _ranks_out(self) -> list[int]:
        return [rank for rank in self.tasks if rank not in self.reported and rank not in self.closed]

    def _read_messages(self, process: RankProcess) -> None:
        """Give the rank its task, which may be long and its rank slow to take it, and hear what comes of it."""
        message: Any = None
        try:
            self.crew.give(self.tasks[process.rank])
            self.given.add(process.rank)
            self.ranks.unanswered.discard(process.rank)  # not before: a rank takes its first message for its task
            while not isinstance(message, _ENDS):
                message = process.connection.recv()
                if isinstance(message, _ENDS):
                    self.reported[process.rank] = message
                elif isinstance(message, Whereabouts) and message.clock_s < self.began_s:
                    continue  # an answer for the last call, which came as that had ended
                self.events.put((process.rank, message))
        except Exception:  # EOFError or OSError where it has ended; after anything else no message can be understood
            self.closed.add(process.rank)
            self.events.put((process.rank, Closed()))

    def _follow(self) -> None:
        """Until every rank has returned; raises what went wrong otherwise."""
        now = time.monotonic()
        deadline, next_question = now + self.timeout_s, now + _ASK_EVERY_S
        while self.ranks.unfinished_ranks():
            before, now = now, time.monotonic()
            if self.conversation.goes_on:  # nobody is late while the reader debugs
                deadline += now - before
            if now >= deadline and (
                    late := diagnosis.find_timeout(self.ranks, self.timeout_s, _STILL_S, self._handle)):
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
                self.ranks.note(rank, message)
            case messages.Returned():
                self.ranks.note_return(rank, message, time.monotonic())
                self.conversation.end_turn(rank)
            case messages.Asks():
                self.conversation.take_question(rank, message)
            case messages.Continues():
                self.conversation.end_turn(rank)
            case Typed():
                self.ranks.restart_clocks()
                self.conversation.take_line(rank, message.line)
            case messages.Quit():
                raise diagnosis.reader_quit(rank, message)
            case messages.Failed():
                raise diagnosis.find_failure(self.ranks, rank, message, self._handle)
            case Interrupted():
                raise diagnosis.find_interrupt(self.ranks, self._handle)
            case Closed():
                raise diagnosis.find_death(self.ranks, rank)

    def _look_around(self) -> None:
        diagnosis.raise_silent_death(self.ranks)
        self.ranks.ask()
        self.conversation.pass_on(lambda rank: self.ranks.still_for_s(rank) > _PASSES_S)
        if not self.conversation.stands_still and (hang := diagnosis.find_deadlock(self.ranks, _STILL_S)):
            raise hang


def start_reader(read: Callable, *arguments: Any) -> threading.Thread:
    """A daemon thread that runs read(*arguments): a rank that never closes its pipe does not keep the notebook alive.
    """
    thread = threading.Thread(target=read, args=arguments, name="course_lib reader", daemon=True)
    thread.start()
    return thread
