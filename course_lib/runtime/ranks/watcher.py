"""The thread in each rank that answers "where are you?" while the main thread computes, waits or hangs.

It can also take the rank out of what it is in the middle of, so that the rank lives on with all that it holds. A
collective that has begun cannot be called off: gloo waits in C++ until its peers have answered or gone. So its
connections are closed under it, whereupon the call raises "connection closed" in the rank itself. Python code is
stopped by a signal. What neither reaches (one long call into C, a wait for torch's store) ends with the rank's process.
"""

import os
import queue
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from course_lib.runtime import context
from course_lib.runtime.instruments import pending
from course_lib.runtime.ranks.frames import Frame, frames_of_thread
from course_lib.runtime.ranks.messages import DISMISS, STOP, Task, Typed, Whereabouts
from course_lib.runtime.torch_private import abort_groups

DESCRIPTORS = Path("/dev/fd")  # of this process; Windows has none

_kept: dict[int, socket.socket] = {}  # inode -> a connection that gloo may have closed, held open for the peers
_stoppable = False  # whether the main thread runs the reader's code


class Stopped(BaseException):
    """Ends a call from outside. Neither `except Exception` nor a debugger's own KeyboardInterrupt catches it."""


def run_stoppable(function: Callable[[], Any]) -> Any:
    """function(), in the main thread. A stop ends it; one that comes before or after ends nothing."""
    global _stoppable
    if signal.getsignal(signal.SIGINT) is not _raise:
        signal.signal(signal.SIGINT, _raise)
    _stoppable = True
    try:
        return function()
    finally:
        _stoppable = False


def _raise(number: int, frame: FrameType | None) -> None:
    """Not in run_stoppable's own frame: there it would leave the rank stoppable for ever."""
    if not _stoppable or frame is None or frame.f_code is run_stoppable.__code__:
        return
    while frame := frame.f_back:
        if frame.f_code is run_stoppable.__code__:
            raise Stopped


def stop() -> None:
    """In a thread beside the main one: end the call that the main one is in. Again, where that was caught."""
    if not _stoppable:
        return
    with suppress(OSError):  # no file can be opened any more, not even the list of those that are: code can be stopped
        close_connections()
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def close_connections() -> None:
    """Whatever the rank communicates at this moment fails here, and nothing at the other end, which is stopped itself.
    The rank's process group is of no use afterwards, and has to be made anew.

    A write that fails in the moment that a peer asks for it is one that gloo forgets: whoever sends it waits for ever.
    So connections are closed for reading only, and stay open for the peers until `close_kept`.
    """
    if context.current is not None and context.current.backend == "nccl":
        with suppress(RuntimeError):  # it cannot: the rank ends, where it does not come back by itself
            abort_groups()
    for descriptor in map(int, os.listdir(DESCRIPTORS)) if DESCRIPTORS.is_dir() else ():
        with suppress(OSError):  # closed meanwhile
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and status.st_ino not in _kept:
                connection = socket.socket(fileno=os.dup(descriptor))
                # Only connections: gloo ends the process when one that listens is closed under it.
                over_network = connection.family in (socket.AF_INET, socket.AF_INET6)
                if (over_network and connection.type == socket.SOCK_STREAM
                        and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
                    connection.shutdown(socket.SHUT_RD)
                    _kept[status.st_ino] = connection
                else:
                    connection.close()


def close_kept() -> None:
    """Close what `close_connections` has left open, once all ranks have left the old process group."""
    while _kept:
        _kept.popitem()[1].close()


# Functions of torch.distributed that wait for other ranks without passing through a process group's methods.
_WAITING_FUNCTIONS = {"init_process_group", "new_group", "_new_process_group_helper", "new_subgroups",
                      "init_device_mesh", "split_group", "_store_based_barrier", "wait_tensor",
                      "destroy_process_group"}
_BACKWARD = "_engine_run_backward"
THREADS = Path("/proc/self/task")


class RankWatcher:
    """Owns the rank's connection to the notebook from the moment the task has arrived."""

    def __init__(self, connection: Connection, folder: str | None) -> None:
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()  # what to do next; None: the rank may go
        self.typed: queue.SimpleQueue[Typed] = queue.SimpleQueue()  # answers to a debugger's questions
        self._folder, self._connection, self._sending = folder, connection, threading.Lock()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._answer, name="course_lib watcher", daemon=True)
        self._thread.start()

    def report(self, message: Any) -> None:
        """Send a message to the notebook; two threads may do so at once."""
        with self._sending:
            self._connection.send(message)

    def stop(self) -> None:
        self._thread.join()

    def _answer(self) -> None:
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):  # the notebook is gone, and with it the reason to go on
                if self._folder:
                    shutil.rmtree(self._folder, ignore_errors=True)
                os._exit(1)
            if request == DISMISS:
                self.tasks.put(None)
                return
            if request == STOP:
                stop()
            elif isinstance(request, Task):
                self.typed = queue.SimpleQueue()  # an answer that came too late for the last call is not for this one
                self.tasks.put(request)
            elif isinstance(request, Typed):
                self.typed.put(request)
            else:
                try:
                    seen = self._look()
                except Exception:  # a reader's thread that ends, a rank without open files: it must hear its next task
                    seen = Whereabouts((), None, None, {}, 0.0, time.monotonic())
                self.report(seen)

    def _look(self) -> Whereabouts:
        stacks = sys._current_frames()
        # A frame keeps the reader's tensors alive, and our own in our own variable would be a cycle: all are dropped
        # here, before anything below lets the reader's thread go on.
        files = {thread: frame.f_code.co_filename for thread, frame in stacks.items()}
        frames = frames_of_thread(stacks.pop(self._main, None))
        del stacks
        calls = list(pending.waiting_in.get(self._main, ()))  # a copy: the main thread goes on meanwhile
        waits_in = call = None
        if not self._others_at_work(files):
            call = calls[0] if calls else None
            waits_in = str(call) if call else _waiting_function(frames)
        return Whereabouts(frames, waits_in, call, dict(pending.counts), busy_s(), time.monotonic())

    def _others_at_work(self, files: dict[int, str]) -> bool:
        """Whether a thread that the function started may yet do what the main thread waits for."""
        others = {thread.ident for thread in threading.enumerate()} - {self._main, self._thread.ident}
        in_no_lock = [other for other in others if files.get(other, threading.__file__) != threading.__file__]
        return any(not pending.waiting_in.get(other) for other in in_no_lock)


def busy_s() -> float:
    """How long the threads of this process, the calling one left out, have run or stood in line for a core.

    On a machine with too much to do, a rank that computes in C++ may get no core for seconds: it is in line then, not
    stuck. Linux only; elsewhere the CPU time of the process.
    """
    total_ns = 0
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        if int(thread.name) != threading.get_native_id():  # the watcher itself stands in line as well
            try:
                ran, waited, _ = (thread / "schedstat").read_text().split()
            except (OSError, ValueError):  # it has ended meanwhile, or this kernel keeps no account
                continue
            total_ns += int(ran) + int(waited)
    return total_ns / 1e9 if total_ns else time.process_time()


def _waiting_function(frames: tuple[Frame, ...]) -> str | None:
    if frames and frames[-1].function == _BACKWARD:
        return "backward(), in which a hook waits for the other ranks"
    return next((f"{frame.function}(...)" for frame in frames
                 if frame.is_communication and frame.function in _WAITING_FUNCTIONS), None)
