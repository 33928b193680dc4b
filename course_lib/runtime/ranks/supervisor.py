"""One launch from start to end: hand out the work, show what ranks print, notice how they end, clean up."""

import glob
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Iterable
from typing import Any

import cloudpickle

from course_lib.runtime.errors import LaunchError, LaunchInterrupted, LaunchTimeout, RankDied, RankFailed
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.conversation import Conversation, read_command
from course_lib.runtime.ranks.listening import read_output, start
from course_lib.runtime.ranks.lookout import Lookout
from course_lib.runtime.ranks.messages import (
    DISMISS,
    Asks,
    Continues,
    Exited,
    Failed,
    Quit,
    Returned,
    Task,
    Whereabouts,
)
from course_lib.runtime.ranks.output import RankOutput
from course_lib.runtime.ranks.places import Frame, frames_of_dump
from course_lib.runtime.ranks.pools import ForkPool, WarmPool
from course_lib.runtime.ranks.rank_process import RankProcess
from course_lib.runtime.results import Results

_ASK_EVERY_S = 0.25
_STILL_S = 3.0  # a rank that waits this long, on the same line, without using the CPU, counts as stuck
_ECHO_S = 1.0  # how long "connection closed" may be the echo of another rank's end that we have not heard of yet
_TOGETHER_S = 0.1  # failures this close in time are told as one
_ANSWER_S = 0.5  # a rank that does not say within this time where it is holds the interpreter
_DUMP_S = 2.0  # by then a signal has made it write that down, also where it waits for a core
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
        self.processes: list[RankProcess] = []
        self.events: queue.Queue = queue.Queue()  # (rank, message); message None: the rank is gone
        self.shown: queue.Queue = queue.Queue(maxsize=1000)  # (rank, stream, bytes); None: the launch has ended
        self.returned: dict[int, Returned] = {}
        self.reported: set[int] = set()  # ranks whose function has ended
        self.lookout = Lookout([task.rank for task in tasks], self.processes, self.returned)
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
                self.events.put((-1, "interrupt"))
        output.close()
        thread.join()
        if self.error is not None:
            raise self.error.with_traceback(None)
        if interrupted:  # it came as the last rank returned; the cell around launch must still stop
            raise KeyboardInterrupt
        pairs = [cloudpickle.loads(self.returned[task.rank].payload) for task in self.tasks]
        return Results([result for result, _ in pairs], [logs for _, logs in pairs])

    def _show(self, output: RankOutput) -> bool:
        item = self.shown.get()
        if item is None:
            return True
        rank, stream, content = item
        if stream is None:  # a prompt
            self.events.put((rank, ("typed", read_command(rank, content))))
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
                self.processes.append(process)
                readers.append(start(self._read_messages, process))
                readers += [start(read_output, process, name, self.shown) for name in process.streams]
            self._follow()
        except BaseException as error:
            self.error = error
        try:
            self.pool.finish(self._dismiss_the_reported(), _LEAVE_S)
        except (LaunchError, LaunchInterrupted) as error:  # the pool's own process is gone
            self.error = self.error or error
        for reader in readers:
            reader.join(timeout=5.0)
        self._remove_files()  # before the pool may leave with its folder
        self.pool.release()

    def _remove_files(self) -> None:
        for path in glob.glob(self.tasks[0].store + "*"):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    def _dismiss_the_reported(self) -> set[int]:
        """Ranks whose function has ended, well or not, may leave; the others can only be stopped."""
        reported = self.reported.copy()  # the readers go on adding to it
        for rank in reported:
            try:
                self.processes[rank].send(DISMISS)
            except OSError:  # it has died since
                pass
        return reported

    def _read_messages(self, process: RankProcess) -> None:
        """Give the rank its task, which may be long and its rank slow to take it, and hear what comes of it."""
        message: Any = None
        try:
            process.send(self.tasks[process.rank])
            self.lookout.unanswered.discard(process.rank)
            while not isinstance(message, _ENDS):
                message = process.receive()
                if isinstance(message, _ENDS):
                    self.reported.add(process.rank)
                self.events.put((process.rank, message))
        except (EOFError, OSError):
            self.events.put((process.rank, None))

    def _follow(self) -> None:
        """Until every rank has returned; raises what went wrong otherwise."""
        now = time.monotonic()
        deadline, next_question = now + self.timeout_s, now + _ASK_EVERY_S
        while len(self.returned) < len(self.tasks):
            before, now = now, time.monotonic()
            if self.conversation.goes_on:  # nobody is late while the reader debugs
                deadline += now - before
            if now >= deadline and (late := self._timed_out()):
                raise late
            if now >= next_question:
                self._look_around()
                next_question = now + _ASK_EVERY_S
            try:
                rank, message = self.events.get(timeout=max(0.0, min(next_question, deadline) - now))
            except queue.Empty:
                continue
            self._heed(rank, message)

    def _heed(self, rank: int, message: Any) -> None:
        if isinstance(message, Whereabouts):
            self.lookout.note(rank, message)
        elif isinstance(message, Returned):
            self.returned[rank] = message
            self.conversation.ended(rank)
        elif isinstance(message, Asks):
            self.conversation.asked(rank, message)
        elif isinstance(message, Continues):
            self.conversation.ended(rank)
        elif isinstance(message, tuple):
            self.lookout.restart_clocks()
            self.conversation.typed(rank, message[1])
        elif isinstance(message, Quit):
            raise diagnosis.quit_by_reader(rank, message)
        elif isinstance(message, Failed):
            raise self._failed(rank, message)
        elif isinstance(message, Exited):
            raise diagnosis.rank_exited(rank, message)
        elif message == "interrupt":
            silent = self._frames_by_signal(self._ask_and_wait())
            raise LaunchInterrupted(diagnosis.interrupted(self.lookout.sightings(), silent))
        else:
            raise self._died(rank)

    # Deaths, failures, time-outs

    def _died(self, rank: int) -> RankDied:
        deadline = time.monotonic() + 2.0
        while (code := self.pool.exit_code(self.processes[rank])) is None and time.monotonic() < deadline:
            time.sleep(0.005)  # its connection closes a moment before the process can be reaped
        last_words = frames_of_dump(self.tasks[rank].dump)  # written when a library aborts or memory is violated
        return diagnosis.rank_died(rank, code, last_words, self.lookout.seen.get(rank))

    def _notice_deaths(self) -> None:
        """Of ranks whose connection is held open by a process that they started, so that its end tells nothing."""
        for rank in self.lookout.unfinished():
            if self.pool.exit_code(self.processes[rank]) is not None and self.events.empty():
                raise self._died(rank)

    def _failed(self, first: int, failure: Failed) -> LaunchError:
        """Which of the failures that arrive together is the story, and which are only its echo."""
        failures = {first: failure}
        for rank in self.lookout.unfinished():
            self.lookout.ask(rank)
        until = time.monotonic() + (_ECHO_S if diagnosis.is_echo(failure) else _TOGETHER_S)
        while len(failures) + len(self.returned) < len(self.tasks) and time.monotonic() < until:
            try:
                rank, message = self.events.get(timeout=_TOGETHER_S)
            except queue.Empty:
                self._notice_deaths()
                continue
            if isinstance(message, Failed):
                failures[rank] = message
                if not diagnosis.is_echo(message):
                    until = min(until, time.monotonic() + _TOGETHER_S)
            elif isinstance(message, (Returned, Whereabouts)) or all(map(diagnosis.is_echo, failures.values())):
                self._heed(rank, message)  # a death, an exit or an interrupt: the failures so far were its echo
        return self._story(failures)

    def _story(self, failures: dict[int, Failed]) -> RankFailed:
        true = {rank: failure for rank, failure in failures.items() if not diagnosis.is_echo(failure)} or failures
        kind = next(iter(true.values())).type_name  # of the first that arrived
        alike = sorted(rank for rank, failure in true.items() if failure.type_name == kind)
        rank = alike[0]
        exception = None
        if true[rank].exception is not None:
            try:
                exception = cloudpickle.loads(true[rank].exception)
            except Exception:  # an exception class that cannot be rebuilt: its text is in the message anyway
                exception = None
        sightings = {r: seen for r, seen in self.lookout.sightings().items() if r not in failures}
        return diagnosis.rank_failed(rank, true[rank], alike[1:], sightings, exception)

    def _timed_out(self) -> LaunchTimeout | None:
        """None where the last rank returned while all were asked where they are."""
        silent = self._frames_by_signal(self._ask_and_wait())
        if len(self.returned) == len(self.tasks):
            return None
        return diagnosis.timed_out(self.lookout.sightings(), silent, self.timeout_s)

    def _frames_by_signal(self, ranks: list[int]) -> dict[int, tuple[Frame, ...]]:
        """Where ranks are that hold the interpreter: faulthandler writes it down without the interpreter's help."""
        frames: dict[int, tuple[Frame, ...]] = dict.fromkeys(ranks, ())
        if not hasattr(signal, "SIGUSR1"):
            return frames
        for rank in ranks:
            self.pool.signal(self.processes[rank], signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_S
        while self._alive(rank for rank in ranks if not frames[rank]) and time.monotonic() < deadline:
            time.sleep(0.02)
            frames = {rank: seen or frames_of_dump(self.tasks[rank].dump) for rank, seen in frames.items()}
        return frames

    def _alive(self, ranks: Iterable[int]) -> bool:
        return any(self.pool.exit_code(self.processes[rank]) is None for rank in ranks)

    # Where everybody is

    def _look_around(self) -> None:
        self._notice_deaths()
        for rank in self.lookout.unfinished():
            self.lookout.ask(rank)
        self.conversation.pass_on(lambda rank: self.lookout.still_for_s(rank) > _PASSES_S)
        if self.conversation.stands_still:
            return
        if self.lookout.all_still_for_s() >= _STILL_S:
            raise diagnosis.deadlock(self.lookout.sightings(), _STILL_S)

    def _ask_and_wait(self) -> list[int]:
        """Ask every unfinished rank; returns those that did not answer in time."""
        silent, until = set(self.lookout.unfinished()), time.monotonic() + _ANSWER_S
        while silent and time.monotonic() < until:
            for rank in silent:  # again and again, for one that takes its task in this moment could not be asked yet
                self.lookout.ask(rank)
            try:
                rank, message = self.events.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(message, (Whereabouts, Returned)):
                self._heed(rank, message)
                silent.discard(rank)
        return sorted(silent)
