"""Ranks forked from a warm server (Linux).

The server answers one request at a time. One that is frozen (SIGSTOP, a machine that swaps to death) would hold up a
launch for ever, so every answer has its time: without a sign of life for some seconds, the server and its ranks are
killed, launch says so, and the next launch starts a new server.

A server holds 270 MB. When nobody has asked for anything for some minutes it leaves, as the notebook may stand open in
a tab that nobody looks at; the next launch starts another one, which answers after about a second.

Ranks that stay have a server of their own, which is a fork of this one.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

import psutil

from course_lib.runtime import context
from course_lib.runtime.errors import LaunchError, LaunchInterrupted
from course_lib.runtime.ranks import home
from course_lib.runtime.ranks.home import PRELOAD, PROJECT, SERVES_AFTER
from course_lib.runtime.ranks.processes import RankProcess, hold_interrupts, kill_by_mark, kill_tree, runs

_HERE = Path(__file__).resolve().parent
# A fork copies the page tables of all that the server has imported. With that memory in huge pages (glibc 2.35+, and
# only through malloc), measured: fork 2 ms instead of 12, the end of a rank 5 ms instead of 16.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "PYTHONMALLOC": "malloc"}
# On a busy machine the server gets a core too rarely, at a cold start it waits for the disk: both are signs of life.
_LIVES_WITHIN_S = 25.0  # without an answer and without a sign of life for so long, it is frozen
_ANSWERS_WITHIN_S = 120.0  # importing torch from a cold disk takes long; longer than this, something is broken
_HURRIED_S = 3.0  # the same, once the reader has interrupted: what imports goes on, as teams live from it
_LOOKS_EVERY_S = 0.1
CLOSES_WITHIN_S = 10.0
_LEAVES_AFTER_S = 300.0  # without a call
_ENDED = "the process that starts ranks has ended; the next launch starts a new one"
# Ranks that would each import much by themselves, on a few cores, wait for the server, which imports it once: so many
# ranks, and a call that names what trains. An optimiser alone brings 800 modules of torch: the first two launches that
# train take 3.3 and 0.8 s in place of 6.7 and 3.9.
MANY = 16
_MUCH = re.compile(rb"course_lib\.(?!runtime|collectives|groups|grading)|torch\.optim|torch\.nn\.parallel|"
                   rb"torch\.distributed\.(tensor|fsdp|pipelining|checkpoint)")


class ForkPool:
    """Ranks forked from `fork_server.py`, new ones for each launch."""

    def __init__(self, leaves_after_s: float = _LEAVES_AFTER_S) -> None:
        self.folder: str | None = None
        self.hurried = threading.Event()  # the reader has interrupted the launch
        self._server: subprocess.Popen | None = None
        self._control: Connection | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ranks: list[RankProcess] = []
        self._exit_codes: dict[int, int] = {}
        self._leaves_after_s = leaves_after_s
        self._leaving: threading.Timer | None = None  # ends the server, unless somebody asks for something before
        self._num_users = 0  # a launch that is under way, and teams: both may take longer than that

    def begin(self) -> None:
        """As `start`, for a launch or a branch: the server stays until as many have let it go."""
        with self._lock:
            self._num_users += 1
        self.hurried.clear()  # it was for a launch that has ended
        self.start()

    def start(self) -> None:
        """Start the server if there is none; returns at once, while it imports torch."""
        with hold_interrupts(), self._lock:
            self._start()
            self._put_off_leaving()

    def _start(self) -> None:
        if self._owner != os.getpid():  # a fork of the notebook's process: that server is not ours
            self._server, self._control, self.folder, self._owner = None, None, None, os.getpid()
        if not self.has_ended:
            return
        self._end_server()
        self.folder = tempfile.mkdtemp(prefix="course_lib_")
        ours, theirs = Pipe()
        with open(os.path.join(self.folder, "server.log"), "wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-P", str(_HERE / "fork_server.py"), PROJECT, str(theirs.fileno()), self.folder,
                 str(SERVES_AFTER), *PRELOAD],
                env={**os.environ, context.RANK_MARK: self.folder, **_HUGE_PAGES},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                start_new_session=True,  # Jupyter interrupts the kernel's whole process group
            )
        theirs.close()
        self._control = ours
        atexit.unregister(self.close)
        atexit.register(self.close)

    def processes(self, world_size: int, env: dict[str, str], call: bytes) -> Iterator[RankProcess]:
        """One after another, so that the first can start its work while the next is forked. call: what they will run.
        """
        self._ranks, self._exit_codes = [], {}
        # Imported once in the server, a module costs a rank nothing; imported in each rank, it costs all cores at once.
        if world_size > MANY or _MUCH.search(call):
            self.wait_for_preload()
        self.start()
        ours = home.describe(env, mark=self.folder)
        for rank in range(world_size):
            process = self._fork(rank)
            self._ranks.append(process)
            process.tell(ours)
            yield process

    def _fork(self, rank: int) -> RankProcess:
        connection, theirs = Pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        streams = {"stdout": open(out_read, "rb", buffering=0), "stderr": open(err_read, "rb", buffering=0)}
        try:
            pid = self.ask("fork", handles=(theirs.fileno(), out_write, err_write))
        except BaseException:
            for ours in (connection, *streams.values()):
                ours.close()
            raise
        finally:
            # The rank has its own copies. With ours left open, its end would not end what its readers read.
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        return RankProcess(rank, pid, connection, streams)

    @property
    def has_ended(self) -> bool:
        """Whether the server is gone, and with it every rank that it has forked."""
        return self._control is None or self._server is None or self._server.poll() is not None

    def exit_code(self, process: RankProcess) -> int | None:
        """The exit code of a rank; None while the process lives."""
        self._exit_codes |= self.ask("reap")
        return self._exit_codes.get(process.pid)

    def signal(self, process: RankProcess, number: int) -> None:
        """Send a signal, through the server, whose child the rank is."""
        self.ask("signal", process.pid, number)

    def finish(self, dismissed: Collection[int], grace_s: float) -> None:
        """End the ranks and all that they started; if all were dismissed, give them `grace_s` to end by themselves."""
        self._exit_codes |= self.ask("finish", grace_s if len(dismissed) == len(self._ranks) else 0.0)

    def release(self) -> None:
        """Close the connections, once nobody reads from them any more."""
        for process in self._ranks:
            process.connection.close()
        self.let_go()

    def let_go(self) -> None:
        """The end of what `begin` began."""
        with self._lock:
            self._num_users -= 1
            self._put_off_leaving()

    def _put_off_leaving(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = threading.Timer(self._leaves_after_s, self._leave)
        self._leaving.daemon = True
        self._leaving.start()

    def _leave(self) -> None:
        with self._lock:  # whoever starts the server meanwhile waits, and starts another one
            # A timer that ran out just before it was cancelled comes here, too: another has taken its place.
            if threading.current_thread() is self._leaving and not self._num_users:
                self.close()

    def wait_for_preload(self) -> None:
        """Block until the server has imported all that ranks may need."""
        self.start()
        while not self.ask("preload_more"):
            if self.hurried.is_set():
                raise LaunchInterrupted("interrupted; the server that starts ranks was still importing")

    def close(self) -> None:
        """End the server; it takes its ranks along."""
        # Without the lock, which _leave holds already.
        if self._owner == os.getpid() and self._control is not None:
            self._control.close()
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(CLOSES_WITHIN_S)
            self._end_server()

    # Requests and answers

    def ask(self, *request: Any, handles: Collection[int] = ()) -> Any:
        """The server's answer to a request. `handles` of open files go along with it."""
        # Nobody else's request, and no interrupt, may come between this one, its handles and its answer.
        with hold_interrupts(self.hurried), self._lock:
            self._send(request, handles)
            return self._receive()

    def _send(self, request: tuple, handles: Collection[int]) -> None:
        if self._control is None:
            raise LaunchError(_ENDED)
        try:
            self._control.send(request)
            for handle in handles:
                send_handle(self._control, handle, self._server.pid)
        except OSError as error:
            raise self._error_of_end() from error

    def _receive(self) -> Any:
        asked = lived = time.monotonic()
        used_s = None
        try:
            while not self._control.poll(_LOOKS_EVERY_S):
                now = time.monotonic()
                if (sign := self._sign_of_life()) != used_s:
                    lived, used_s = now, sign
                lives_within_s = _HURRIED_S if self.hurried.is_set() else _LIVES_WITHIN_S
                if now - lived > lives_within_s or now - asked > _ANSWERS_WITHIN_S:
                    raise self._error_of_freeze(now - asked)
            return self._control.recv()
        except (EOFError, OSError) as error:
            raise self._error_of_end() from error

    def _sign_of_life(self) -> float | None:
        """The CPU time that the server has used, or now where it waits for the disk: what changes while it works."""
        with suppress(psutil.Error):  # it has ended: the connection will say so
            server = psutil.Process(self._server.pid)
            return time.monotonic() if server.status() == psutil.STATUS_DISK_SLEEP else sum(server.cpu_times()[:2])
        return None

    # How a server ends

    def _error_of_end(self) -> LaunchError:
        path = Path(self.folder, "server.log")
        log = path.read_text(errors="replace").strip() if path.exists() else ""
        self._end_server()
        return LaunchError(_ENDED + (f". It said:\n{log[-2000:]}" if log else ""))

    def _error_of_freeze(self, waited_s: float) -> LaunchError | LaunchInterrupted:
        state = "gone"
        with suppress(psutil.Error):
            state = psutil.Process(self._server.pid).status()
        self._end_server()
        message = (f"the process that starts ranks did not answer for {waited_s:.0f} s (the system calls it {state}). "
                   "It and its ranks were killed, and the next launch starts a new one")
        return LaunchInterrupted(f"interrupted; {message}") if self.hurried.is_set() else LaunchError(message)

    def _end_server(self) -> None:
        """Kill the server, if it is still there, and whatever its ranks started; forget it."""
        if self._server is not None:
            if self._server.poll() is None:
                kill_tree(self._server.pid)
                self._server.wait()
            kill_by_mark(self.folder, spare=())
            self._server = None
        if self._control is not None:
            self._control.close()
            self._control = None
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class BranchPool(ForkPool):
    """For the ranks of one team. When its server has ended there is no other one."""

    def __init__(self, root: ForkPool, folder: str, control: Connection, pid: int) -> None:
        super().__init__()
        self._root, self.folder, self._control, self._server = root, folder, control, _ForkedServer(pid)

    def begin(self) -> None:
        """Nothing to start, and nothing to wait for: it was forked when all had been imported."""

    start = wait_for_preload = begin

    def release(self) -> None:
        """Close the connections, once nobody reads from them any more, and end the server."""
        for process in self._ranks:
            process.connection.close()
            for stream in process.streams.values():
                stream.close()
        self.close()
        self._root.let_go()
        with suppress(LaunchError):  # it has ended as well
            self._root.ask("reap")


class _ForkedServer:
    """A server that another one has forked, with what is asked of a Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)  # remembers when it began: the number may be another's later on

    def poll(self) -> int | None:
        return None if runs(self._process) else 0

    def wait(self, timeout: float = CLOSES_WITHIN_S) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the server of a team", timeout)
            time.sleep(0.001)
