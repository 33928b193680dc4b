"""The thread in each rank that answers "where are you?" while the main thread computes, waits or hangs."""

import os
import queue
import shutil
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from course_lib.runtime.instruments import pending
from course_lib.runtime.ranks import stopping
from course_lib.runtime.ranks.messages import DISMISS, STOP, Task, Typed, Whereabouts
from course_lib.runtime.ranks.places import Frame, frames_of_thread

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
        self._folder = folder
        self._connection = connection
        self._sending = threading.Lock()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._answer, name="course_lib watcher", daemon=True)
        self._thread.start()

    def report(self, message: Any) -> None:
        """Send a message to the notebook; two threads may do so at once."""
        with self._sending:
            self._connection.send(message)

    def stop(self) -> None:
        """Wait until the thread has ended."""
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
                stopping.stop()
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
        waits_in, call = None, None
        if self._others_at_work(files):
            pass
        elif calls:
            waits_in, call = str(calls[0]), calls[0]
        elif frames:
            waits_in = _waiting_function(frames)
        return Whereabouts(frames, waits_in, call, dict(pending.counts), busy_s(), time.monotonic())

    def _others_at_work(self, files: dict[int, str]) -> bool:
        """Whether a thread that the function started may yet do what the main thread waits for."""
        for thread in threading.enumerate():
            if thread.ident in (self._main, self._thread.ident) or thread.ident not in files:
                continue
            in_a_lock = files[thread.ident] == threading.__file__
            if not in_a_lock and not pending.waiting_in.get(thread.ident):
                return True
        return False


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
    if frames[-1].function == _BACKWARD:
        return "backward(), in which a hook waits for the other ranks"
    for frame in frames:
        if frame.is_communication and frame.function in _WAITING_FUNCTIONS:
            return f"{frame.function}(...)"
    return None
