"""The process that forks ranks: it has imported torch once, so that a rank starts in milliseconds (Linux).

Run as a script, never imported: `python -P fork_server.py PROJECT CONTROL_FD FOLDER SERVES_AFTER MODULE ...`. The
notebook's process holds the other end of the control connection and asks for one thing at a time.

Three rules keep it trustworthy. It imports libraries and the course's modules, which it forgets once a file of theirs
has been edited, and never the reader's modules, which a forked rank imports afresh. It runs no tensor code, so that it
stays single-threaded and CUDA stays uninitialised, as fork demands. And nothing outlives it: it adopts every orphan of
its ranks (PR_SET_CHILD_SUBREAPER), kills what is left after each launch, and ends when the notebook's process does.
"""

import atexit
import ctypes
import gc
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def set_process_option(option: int, value: int) -> None:
    """Linux prctl(2): neither option exists in Python's standard library."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def end_with_parent(pid: int) -> None:
    """In a forked child: die when its parent, process `pid`, does."""
    set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:  # it died before the line above took effect
        os._exit(70)


class Server:
    """Answers the notebook's requests, one at a time, and imports ahead in between."""

    def __init__(self, control: Connection, folder: str, modules: list[str]) -> None:
        self.control, self.folder = control, folder  # which holds the launches' files, and goes when the server goes
        self.notebook, self.own_pid = os.getppid(), os.getpid()
        self.waiting_imports = modules  # imported in this order while nothing else is asked for
        self.ranks: set[int] = set()  # process ids of living ranks
        self.branches: set[int] = set()  # process ids of servers forked from this one
        self.exit_codes: dict[int, int] = {}

    def serve(self, after: int) -> None:
        """Answer requests once the first `after` modules are imported."""
        gc.disable()  # nothing that is imported here goes again: looking through it takes a tenth of the time
        for _ in range(after):
            importlib.import_module(self.waiting_imports.pop(0))
        gc.enable()
        # Imported here and below: course_lib was not yet on the path when this script began.
        from course_lib.runtime.ranks.home import CourseModules

        self.course = CourseModules(self.folder)
        self.answer()

    def answer(self) -> None:
        """One request after the other, until the notebook has gone."""
        requests = {each.__name__: each for each in (self.fork, self.branch, self.reap, self.signal, self.finish,
                                                     self.preload_more)}
        try:
            while os.getppid() == self.notebook:  # a notebook that dies leaves its child to another parent
                # Ranks at work have the machine to themselves: imports wait until they are gone.
                idle = self.waiting_imports and not self.ranks
                if self.control.poll(0 if idle else 0.5):
                    name, *arguments = self.control.recv()
                    self.control.send(requests[name](*arguments))
                elif idle:
                    self.preload_next()
        except (EOFError, ConnectionError):  # the notebook closed its end, or died
            pass
        finally:
            self.branches.clear()  # they end with this server
            self.finish(grace_s=0.0)
        shutil.rmtree(self.folder, ignore_errors=True)  # not after an error of ours: the log is in there

    def preload_next(self) -> None:
        """One library, or all of the course's modules that wait: a launch that comes now needs them, most likely."""
        names, self.waiting_imports = self.waiting_imports[:1], self.waiting_imports[1:]
        if names[0].startswith("course_lib."):
            names, self.waiting_imports = [*names, *self.waiting_imports], []
        for name in names:
            with suppress(Exception):  # a torch without this part, a file half edited: a rank that needs it will say so
                importlib.import_module(name)
        self.course.remember()

    def preload_more(self) -> bool:
        """Whether every import is done; does one more on the way, so that asking in a loop makes it true."""
        if self.waiting_imports:
            self.preload_next()
        return not self.waiting_imports

    def fork(self) -> int:
        """Fork one rank around three handles that follow the request: connection, stdout, stderr."""
        handles = [recv_handle(self.control) for _ in range(3)]
        first = not self.ranks
        if first:  # not for later ones: all ranks of a launch must run the same code
            self.waiting_imports += self.course.forget_stale_modules()
        gc.freeze()  # a rank's garbage collector need not look at what was here before it, nor copy those pages
        at_its_end = [self.course.leave_imports] if first else []
        pid = fork_into(become_rank, self.control, self.own_pid, handles, at_its_end)
        # The rank has its own copies. Kept open here, they would hide from the notebook that the rank has ended.
        for handle in handles:
            os.close(handle)
        self.ranks.add(pid)
        return pid

    def branch(self, folder: str) -> int:
        """Fork a server like this one, for ranks that stay. Its control connection follows the request, and `folder` is
        its own. It knows nothing of this server's ranks, nor this one of its.
        """
        handle = recv_handle(self.control)
        pid = fork_into(self.become_branch, handle, folder)
        os.close(handle)
        self.branches.add(pid)
        return pid

    def become_branch(self, handle: int, folder: str) -> None:
        """In the forked server: answer its own notebook's end."""
        server = self.own_pid
        end_with_parent(server)
        set_process_option(PR_SET_CHILD_SUBREAPER, 1)
        self.control.close()
        self.control, self.folder, self.notebook, self.own_pid = Connection(handle), folder, server, os.getpid()
        self.ranks, self.branches, self.exit_codes, self.waiting_imports = set(), set(), {}, []
        log = os.open(os.path.join(folder, "server.log"), os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 2)
        os.close(log)
        self.answer()

    def reap(self) -> dict[int, int]:
        """Exit codes (negative: the signal) of the ranks that have ended since the last `finish`."""
        ended = {pid for pid in self.branches if os.waitpid(pid, os.WNOHANG)[0]}
        self.branches -= ended
        if ended and not self.ranks:  # of a branch that was killed, the ranks are this server's children now
            self.end_children()
        for pid in list(self.ranks):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.ranks.discard(pid)
                self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
        return self.exit_codes

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a rank that has not been waited for yet."""
        if pid in self.ranks:  # still our child, so the number cannot belong to anybody else
            os.kill(pid, number)

    def finish(self, grace_s: float) -> dict[int, int]:
        """Give the ranks `grace_s` to end by themselves, then end them and everything that they started."""
        deadline = time.monotonic() + grace_s
        while self.reap() is not None and self.ranks and time.monotonic() < deadline:
            time.sleep(0.001)
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)
        # Waited for one by one: a process that was killed stays in the table until its parent has asked for its exit.
        while self.ranks:
            self.reap()
        # As their subreaper, whatever the ranks started is now our child.
        self.end_children()
        self.waiting_imports += self.course.take_imports()
        exit_codes, self.exit_codes = self.exit_codes, {}
        return exit_codes

    def end_children(self) -> None:
        """End what ranks have left, and everything of theirs; branches stay."""
        from course_lib.runtime.ranks.processes import kill_own_children

        kill_own_children(self.branches)


def fork_into(become: Callable[..., None], *arguments: Any) -> int:
    """The process id of a new child, which runs become(*arguments) and then ends."""
    pid = os.fork()
    if pid == 0:
        try:
            become(*arguments)
        except BaseException:  # it broke itself, for example because the folder is gone
            traceback.print_exc()
        finally:
            os._exit(70)
    return pid


def become_rank(control: Connection, server: int, handles: list[int], at_its_end: list[Callable[[], None]]) -> None:
    """In the forked child: take the rank's own connection and streams, then run course_lib's code for ranks."""
    end_with_parent(server)
    atexit._clear()  # the exits of this server's libraries are not the rank's
    for function in at_its_end:
        atexit.register(function)
    connection_fd, stdout_fd, stderr_fd = handles
    control.close()
    # A fork inherits what the server does with signals, which is to ignore them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (stdout_fd, 1), (stderr_fd, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin, sys.stdout, sys.stderr = (open(0, closefd=False), open(1, "w", buffering=1, closefd=False),
                                         open(2, "w", buffering=1, closefd=False))
    connection = Connection(connection_fd)
    importlib.import_module("course_lib.runtime.ranks.home").adopt(connection.recv())
    importlib.import_module("course_lib.runtime.ranks.rank").main(connection)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # Jupyter interrupts the notebook, never this process
        signal.signal(number, signal.SIG_IGN)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    project, control_fd, folder, serves_after, *modules = sys.argv[1:]
    sys.path.append(project)
    Server(Connection(int(control_fd)), folder, modules).serve(int(serves_after))
