"""One rank as the notebook's process sees it, the same from either pool; a child that computes within limits; and
ending what ranks started: children, and daemons that have left their parents.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, BinaryIO

import psutil

from course_lib.runtime import context


class Closed:
    """Stands for the message that will not come: the other end has closed the connection."""


@dataclass
class RankProcess:
    """A living rank, and what connects it to the notebook."""

    rank: int
    pid: int
    connection: Connection
    streams: dict[str, BinaryIO]  # "stdout", "stderr"
    end_of_output: bytes = b""  # what ends a call's part of a stream; without it, its closing does
    unread: dict[str, bytes] = field(default_factory=dict)  # stream -> what came behind the end of a call's part
    reads: dict[str, threading.Lock] = field(init=False)  # stream -> taken by the call that reads from it

    def __post_init__(self) -> None:
        self.reads = {name: threading.Lock() for name in self.streams}

    def tell(self, message: Any) -> None:
        """Send a message; nothing where the rank has ended: whoever waits for its answer, or reads its messages, says
        so.
        """
        with suppress(OSError):
            self.connection.send(message)


@contextmanager
def hold_interrupts(came: threading.Event | None = None) -> Iterator[None]:
    """An interrupt that comes meanwhile is raised at the end, and `came` is set at once.

    A question to the server whose answer nobody takes would be answered to whoever asks next.
    """
    raises = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(raises):
        yield
        return
    held = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        held.set()
        if came is not None:
            came.set()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, raises)
        if held.is_set():
            raises(signal.SIGINT, None)


_BEGINS_WITHIN_S = 1.0  # a machine may be busy
_LOOKS = 10  # a program that starts itself again for ever would be found for ever
_DIES_WITHIN_S = 5.0  # a killed process that is inside the operating system finishes that first


def compute_in_child(function: Callable[[], bytes], memory_bytes: int, cpu_s: int) -> bytes | None:
    """What `function` returns in a forked copy of this process, which may take so much memory on top and so many
    seconds; None where it took more, raised, or crashed: whatever it is given, this process goes on. POSIX only.
    """
    import resource

    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            for name, most in (("RLIMIT_AS", psutil.Process().memory_info().vms + memory_bytes), ("RLIMIT_CORE", 0),
                               ("RLIMIT_CPU", cpu_s)):
                resource.setrlimit(getattr(resource, name), (most, most))
            result = b"+" + function()
            while result:
                result = result[os.write(writing, result):]
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        result = pipe.read()
    return result[1:] if os.waitpid(child, 0)[1] == 0 and result else None


def kill_tree(pid: int) -> None:
    """End a process and what it started."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        # Listed before anything is killed: the children of a dead process are somebody else's.
        _kill_and_wait([*root.children(recursive=True), root])


def kill_own_children(spare: Collection[int] = ()) -> None:
    """End what the calling process started or adopted, until nothing of it is left but `spare` and what is theirs."""
    if spare:  # their exits are for somebody else to collect
        while strays := [child for child in psutil.Process().children() if child.pid not in spare]:
            for child in strays:
                with suppress(psutil.NoSuchProcess):
                    _kill([child, *child.children(recursive=True)])
            for child in strays:
                os.waitpid(child.pid, 0)
        return
    while os.name != "nt":
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # no child at all: the usual case
            return
        if not ended:
            # Waited for: a child's child is not ours to collect, and has no environment left to be known by.
            _kill_and_wait(psutil.Process().children(recursive=True))
    _kill(psutil.Process().children(recursive=True))  # Windows has nothing to collect


def kill_by_mark(mark: str, spare: Collection[int]) -> None:
    """End what carries the mark in its environment: also daemons, which are in no tree of processes any more.

    Looks again until nothing is found: what was found may have started something since the list was made.
    """
    for _ in range(_LOOKS):
        psutil.process_iter.cache_clear()  # a number may be another process's by now, which kill() would refuse to end
        doomed = [process for process in psutil.process_iter() if process.pid not in spare and _carries(process, mark)]
        if not doomed:
            return
        _kill_and_wait(doomed)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        deadline = time.monotonic() + _BEGINS_WITHIN_S
        while not (environment := process.environ()) and _is_beginning(process) and time.monotonic() < deadline:
            time.sleep(0.001)
        return environment.get(context.RANK_MARK) == mark
    except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
        return False


def _is_beginning(process: psutil.Process) -> bool:
    """Its program may still be being loaded, and has no environment yet. Threads of the kernel have no program."""
    return time.time() - process.create_time() < 10 * _BEGINS_WITHIN_S and bool(process.exe())


def _kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _kill_and_wait(processes: Collection[psutil.Process]) -> None:
    _kill(processes)
    deadline = time.monotonic() + _DIES_WITHIN_S
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.001)


def runs(process: psutil.Process) -> bool:
    """Whether the process still runs: also False where it has ended and only waits to be reaped by its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
