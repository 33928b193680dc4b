"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive.
"""

import atexit
import os
import queue
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, Listener
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, BinaryIO

from course_lib.runtime import context
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.ranks import home
from course_lib.runtime.ranks.home import PROJECT
from course_lib.runtime.ranks.preload import PRELOAD, SERVES_AFTER
from course_lib.runtime.ranks.processes import kill_marked, kill_tree

_HERE = Path(__file__).resolve().parent
# A fork copies the page tables of all that the server has imported. With that memory in huge pages (glibc 2.35+, and
# only through malloc), measured: fork 2 ms instead of 12, the end of a rank 5 ms instead of 16.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "PYTHONMALLOC": "malloc"}
_STARTS_WITHIN_S = 120.0  # importing torch from a cold disk takes long; longer than this, something is broken


@dataclass
class RankProcess:
    """One rank as the notebook sees it."""

    rank: int
    pid: int
    connection: Connection
    streams: dict[str, BinaryIO]  # "stdout", "stderr"
    end_of_output: bytes = b""  # what ends a stream; without it, its closing does


class ForkPool:
    """Ranks forked from `fork_server.py`, new ones for each launch."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self._server: subprocess.Popen | None = None
        self._control: Connection | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._ranks: list[RankProcess] = []
        self._exit_codes: dict[int, int] = {}

    def start(self) -> None:
        """Start the server if there is none; returns at once, while it imports torch."""
        with self._lock:
            if self._owner != os.getpid():  # a fork of the notebook's process: that server is not ours
                self._server, self._owner = None, os.getpid()
            if self._server is not None and self._server.poll() is None:
                return
            self.close()
            self.folder = tempfile.mkdtemp(prefix="course_lib_")
            ours, theirs = Pipe()
            with open(os.path.join(self.folder, "server.log"), "wb") as log:
                self._server = subprocess.Popen(
                    [sys.executable, "-P", str(_HERE / "fork_server.py"), PROJECT, str(theirs.fileno()), self.folder,
                     str(SERVES_AFTER), *PRELOAD],
                    env={**os.environ, context.RANK_MARK: "1", **_HUGE_PAGES},
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                    start_new_session=True,  # Jupyter interrupts the kernel's whole process group
                )
            theirs.close()
            self._control = ours
            atexit.register(self.close)

    def processes(self, world_size: int, env: dict[str, str]) -> Iterator[RankProcess]:
        """One after another, so that the first can start its work while the next is forked."""
        self.start()
        ours = home.describe(env, mark="1")
        self._ranks, self._exit_codes = [], {}
        for rank in range(world_size):
            process = self._fork(rank)
            self._ranks.append(process)
            process.connection.send(ours)
            yield process

    def _fork(self, rank: int) -> RankProcess:
        connection, theirs = Pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        with self._lock:
            self._send("fork")
            for handle in (theirs.fileno(), out_write, err_write):
                send_handle(self._control, handle, self._server.pid)
            pid = self._receive()
        theirs.close()
        os.close(out_write)
        os.close(err_write)
        streams = {"stdout": open(out_read, "rb", buffering=0), "stderr": open(err_read, "rb", buffering=0)}
        return RankProcess(rank, pid, connection, streams)

    def exit_code(self, process: RankProcess) -> int | None:
        """None while the process lives."""
        self._exit_codes |= self._ask("reap")
        return self._exit_codes.get(process.pid)

    def signal(self, process: RankProcess, number: int) -> None:
        self._ask("signal", process.pid, number)

    def finish(self, dismissed: Collection[int], grace_s: float) -> None:
        """End the ranks and all that they started; if all were dismissed, give them `grace_s` to end by themselves."""
        self._exit_codes |= self._ask("finish", grace_s if len(dismissed) == len(self._ranks) else 0.0)

    def release(self) -> None:
        """Close the connections, once nobody reads from them any more."""
        for process in self._ranks:
            process.connection.close()

    def wait_until_preloaded(self) -> None:
        """Block until the server has imported all that ranks may need (a launch never waits for that)."""
        self.start()
        while not self._ask("preloaded"):
            pass

    def close(self) -> None:
        """End the server; it takes its ranks along."""
        if self._owner == os.getpid() and self._control is not None:
            self._control.close()
            self._server.wait()
            self._control = None
        if self._owner == os.getpid() and self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            self._send(*request)
            return self._receive()

    def _send(self, *request: Any) -> None:
        try:
            self._control.send(request)
        except OSError as error:
            raise self._server_ended() from error

    def _receive(self) -> Any:
        try:
            return self._control.recv()
        except (EOFError, OSError) as error:
            raise self._server_ended() from error

    def _server_ended(self) -> LaunchError:
        path = Path(self.folder, "server.log")
        log = path.read_text(errors="replace").strip() if path.exists() else ""
        return LaunchError("the process that starts ranks has ended; the next launch starts a new one"
                           + (f". It said:\n{log[-2000:]}" if log else ""))


@dataclass
class _Warm:
    """One interpreter of the warm pool."""

    process: subprocess.Popen
    connection: Connection
    end_of_output: bytes


class WarmPool:
    """One interpreter per rank, kept warm between launches: where forking after importing torch is unsafe.

    An interpreter whose rank failed, died or hung is replaced; one that returned is used again.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self._lock = threading.Lock()
        self._warm: dict[int, _Warm] = {}
        self._ranks: list[RankProcess] = []

    def start(self, world_size: int = 0) -> None:
        """Start the interpreters of ranks 0 to world_size - 1 that are missing, side by side."""
        with self._lock:
            self._start(world_size)

    def _start(self, world_size: int) -> None:
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="course_lib_")
            atexit.register(self.close)
        alive = {rank for rank, warm in self._warm.items() if warm.process.poll() is None}
        missing = [rank for rank in range(world_size) if rank not in alive]
        if not missing:
            return
        key, token = secrets.token_bytes(32), secrets.token_hex(8)
        # On Windows the default is a named pipe; elsewhere a socket inside our own folder.
        address = None if os.name == "nt" else os.path.join(self.folder, f"listener-{token}")
        with Listener(address, authkey=key) as listener:
            started = {}
            for rank in missing:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-u", str(_HERE / "warm_rank.py"), PROJECT, str(rank),
                     str(listener.address), token, self.folder, *PRELOAD],
                    env={**os.environ, context.RANK_MARK: self.folder},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                    start_new_session=os.name != "nt",
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
                )
                process.stdin.write(key)
                process.stdin.close()
                started[rank] = process
            for rank, connection in _accept(listener, started):
                self._warm[rank] = _Warm(started[rank], connection, f"\0course_lib {token} {rank}\0".encode())

    def processes(self, world_size: int, env: dict[str, str]) -> Iterator[RankProcess]:
        self.start(world_size)
        ours = home.describe(env, mark=self.folder)
        self._ranks = []
        for rank in range(world_size):
            warm = self._warm[rank]
            warm.connection.send(ours)
            streams = {"stdout": warm.process.stdout, "stderr": warm.process.stderr}
            self._ranks.append(RankProcess(rank, warm.process.pid, warm.connection, streams, warm.end_of_output))
            yield self._ranks[-1]

    def exit_code(self, process: RankProcess) -> int | None:
        return self._warm[process.rank].process.poll()

    def signal(self, process: RankProcess, number: int) -> None:
        if self.exit_code(process) is None:
            os.kill(process.pid, number)

    def finish(self, dismissed: Collection[int], grace_s: float) -> None:
        """Wait until the interpreters of dismissed ranks are ready again, replace the others; end what they started."""
        world_size = len(self._ranks)
        for process in self._ranks:
            warm = self._warm[process.rank]
            if not (process.rank in dismissed and _is_ready(warm.connection, grace_s)):
                kill_tree(warm.process.pid)
                warm.process.wait()
                del self._warm[process.rank]
        with self._lock:  # an interpreter being started in the background is no orphan
            kill_marked(self.folder, spare={warm.process.pid for warm in self._warm.values()})
        if len(self._warm) < world_size:  # while the reader reads the error
            threading.Thread(target=self.start, args=(world_size,), daemon=True).start()

    def release(self) -> None:
        """Close the connections of the interpreters that were replaced, once nobody reads from them any more."""
        for process in self._ranks:
            if all(process.connection is not warm.connection for warm in list(self._warm.values())):
                process.connection.close()

    def wait_until_preloaded(self) -> None:
        """Nothing to wait for: an interpreter imports everything before it says that it is ready."""

    def close(self) -> None:
        with self._lock:
            for warm in self._warm.values():
                kill_tree(warm.process.pid)
                warm.process.wait()
                warm.connection.close()
            self._warm.clear()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None


def _accept(listener: Listener, started: dict[int, subprocess.Popen]) -> Iterator[tuple[int, Connection]]:
    """The connections of the started interpreters, each with its rank; an error when one of them ends instead."""
    arrivals: queue.Queue = queue.Queue()

    def accept() -> None:
        for _ in started:
            connection = listener.accept()
            arrivals.put((connection.recv(), connection))

    threading.Thread(target=accept, daemon=True).start()
    missing, deadline = dict(started), time.monotonic() + _STARTS_WITHIN_S
    while missing:
        try:
            rank, connection = arrivals.get(timeout=0.2)
        except queue.Empty:
            ended = [process for process in missing.values() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                for process in started.values():
                    kill_tree(process.pid)
                said = ended[0].stderr.read().decode(errors="replace")[-2000:] if ended else "no answer"
                raise RuntimeError(f"an interpreter for ranks did not start:\n{said}") from None
            continue
        del missing[rank]
        yield rank, connection


def _is_ready(connection: Connection, within_s: float) -> bool:
    try:
        while connection.poll(within_s):
            if connection.recv() == "ready":  # before it may come an answer that nobody waits for any more
                return True
    except (EOFError, OSError):
        pass
    return False


_pool: ForkPool | WarmPool | None = None


def pool() -> ForkPool | WarmPool:
    """The pool of this process; COURSE_LIB_LAUNCHER=fork or =warm overrules the platform's choice."""
    global _pool
    if _pool is None:
        forks = os.environ.get("COURSE_LIB_LAUNCHER", "fork" if sys.platform == "linux" else "warm") == "fork"
        _pool = ForkPool() if forks else WarmPool()
    return _pool
