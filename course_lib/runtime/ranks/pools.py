"""Where rank processes come from: forked from a warm server (Linux), or interpreters kept warm (macOS, Windows).

Both pools give the same thing, `RankProcess`es to talk to, and promise the same thing: after `finish` nothing that a
rank started is alive. Here are the choice between them, and the interpreters: one a rank, which imports what ranks
need, says so, and then runs one task after another for the notebook's process.
"""

import atexit
import importlib
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
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Client, Connection, Listener

from course_lib.runtime import context
from course_lib.runtime.errors import LaunchInterrupted
from course_lib.runtime.ranks import home
from course_lib.runtime.ranks.fork_pool import BranchPool, ForkPool
from course_lib.runtime.ranks.home import PRELOAD, PROJECT
from course_lib.runtime.ranks.processes import RankProcess, kill_by_mark, kill_tree

_STARTS_WITHIN_S = 120.0  # importing torch from a cold disk takes long; longer than this, something is broken
# What an interpreter runs: its environment has no path to the course.
_WARM = f"import sys; sys.path.append({PROJECT!r}); from {__name__} import serve_warm; serve_warm(*sys.argv[1:])"

_pool: "ForkPool | WarmPool | None" = None


def pool() -> "ForkPool | WarmPool":
    """The pool of this process; COURSE_LIB_LAUNCHER=fork or =warm overrules the platform's choice."""
    global _pool
    if _pool is None:
        forks = os.environ.get("COURSE_LIB_LAUNCHER", "fork" if sys.platform == "linux" else "warm") == "fork"
        _pool = ForkPool() if forks else WarmPool()
    return _pool


def pool_that_stays() -> "BranchPool | WarmPool":
    """A pool for the ranks of one team. Launches go on beside it."""
    global _pool
    ours = pool()
    if isinstance(ours, ForkPool):
        return branch(ours)
    ours.start()
    _pool = None  # its interpreters are the team's, and the next launch starts others
    return ours


def branch(root: ForkPool) -> BranchPool:
    """A pool for ranks that stay, while those of launches come and go in `root`."""
    root.begin()
    try:
        root.wait_for_preload()  # what is missing now, each of its ranks would have to import by itself
        ours, theirs = Pipe()
        folder = tempfile.mkdtemp(prefix="team_", dir=root.folder)
        with theirs:
            return BranchPool(root, folder, ours, root.ask("branch", folder, handles=[theirs.fileno()]))
    except BaseException:
        root.let_go()
        raise


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
        self.hurried = threading.Event()  # the reader has interrupted the launch
        self._lock = threading.Lock()
        self._warm: dict[int, _Warm] = {}
        self._ranks: list[RankProcess] = []

    def begin(self) -> None:
        """Before a launch; these interpreters stay in any case."""
        self.start()

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
                    [sys.executable, "-P", "-u", "-c", _WARM, str(rank), str(listener.address), token, self.folder,
                     *PRELOAD],
                    env={**os.environ, context.RANK_MARK: self.folder},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                    start_new_session=os.name != "nt",
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
                )
                # By stdin and not as an argument, which every user of the machine could read.
                process.stdin.write(key)
                process.stdin.close()
                started[rank] = process
            for rank, connection in _accept(listener, started, self.hurried):
                self._warm[rank] = _Warm(started[rank], connection, _end_of_output(token, rank))

    def processes(self, world_size: int, env: dict[str, str], call: bytes) -> Iterator[RankProcess]:
        """Hand the call to `world_size` warm interpreters, one after the other, each as a RankProcess."""
        self._ranks = []
        self.start(world_size)
        ours = home.describe(env, mark=self.folder)
        for rank in range(world_size):
            warm = self._warm[rank]
            streams = {"stdout": warm.process.stdout, "stderr": warm.process.stderr}
            process = RankProcess(rank, warm.process.pid, warm.connection, streams, warm.end_of_output)
            self._ranks.append(process)
            process.tell(ours)
            yield process

    has_ended = False  # no process stands between the notebook and its ranks

    def exit_code(self, process: RankProcess) -> int | None:
        return self._warm[process.rank].process.poll()

    def signal(self, process: RankProcess, number: int) -> None:
        if self.exit_code(process) is None:
            os.kill(process.pid, number)

    def finish(self, dismissed: Collection[int], grace_s: float) -> None:
        """Wait until the interpreters of dismissed ranks are ready again, end the others, and what they all started."""
        for process in self._ranks:
            warm = self._warm[process.rank]
            if not (process.rank in dismissed and _is_ready(process, grace_s)):
                kill_tree(warm.process.pid)
                warm.process.wait()
                del self._warm[process.rank]
        with self._lock:  # an interpreter that another thread starts is no orphan
            kill_by_mark(self.folder, spare={warm.process.pid for warm in self._warm.values()})

    def release(self) -> None:
        """Close the connections of the interpreters that were replaced, once nobody reads from them any more."""
        for process in self._ranks:
            if all(process.connection is not warm.connection for warm in list(self._warm.values())):
                process.connection.close()

    def wait_for_preload(self) -> None:
        """Nothing to wait for: an interpreter imports everything before it says that it is ready."""

    def close(self) -> None:
        """Kill all interpreters and what they started, and delete their folder."""
        with self._lock:
            for warm in self._warm.values():
                kill_tree(warm.process.pid)
                warm.process.wait()
                warm.connection.close()
            self._warm.clear()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None


def _accept(listener: Listener, started: dict[int, subprocess.Popen],
            hurried: threading.Event) -> Iterator[tuple[int, Connection]]:
    """The connections of the started interpreters, each with its rank; an error when one of them ends instead."""
    arrivals: queue.Queue = queue.Queue()

    def accept() -> None:
        for _ in started:
            connection = listener.accept()
            arrivals.put((connection.recv(), connection))

    # In a thread: accept() waits without a limit, and an interpreter that dies on its way never comes.
    threading.Thread(target=accept, daemon=True).start()
    missing, deadline = dict(started), time.monotonic() + _STARTS_WITHIN_S
    while missing:
        try:
            rank, connection = arrivals.get(timeout=0.2)
        except queue.Empty:
            ended = [process for process in missing.values() if process.poll() is not None]
            if ended or hurried.is_set() or time.monotonic() > deadline:
                for process in started.values():
                    kill_tree(process.pid)
                    process.wait()
                if hurried.is_set():
                    raise LaunchInterrupted("interrupted; the interpreters for ranks had not started yet") from None
                said = ended[0].stderr.read().decode(errors="replace")[-2000:] if ended else "no answer"
                raise RuntimeError(f"an interpreter for ranks did not start:\n{said}") from None
            continue
        del missing[rank]
        yield rank, connection


def _is_ready(process: RankProcess, within_s: float) -> bool:
    with suppress(EOFError, OSError):
        while process.connection.poll(within_s):
            if process.connection.recv() == "ready":  # before it may come an answer that nobody waits for any more
                return True
    return False


def serve_warm(rank: str, address: str, token: str, folder: str, *modules: str) -> None:
    """In an interpreter: import `modules`, connect to the notebook with the key from stdin, and run one task after the
    other until the connection closes.
    """
    key = sys.stdin.buffer.read()
    for name in modules:
        with suppress(ImportError):  # a torch built without this part: a rank that needs it will say so
            importlib.import_module(name)
    connection = Client(address, authkey=key)
    connection.send(int(rank))
    try:
        while True:
            home.adopt(connection.recv())
            importlib.import_module("course_lib.runtime.ranks.rank").main_kept_warm(connection, folder)
            sys.stdout.flush()
            sys.stderr.flush()
            # Before the message: who hears "ready" knows that all output of this task lies in front of the marks.
            for stream in (1, 2):
                os.write(stream, _end_of_output(token, rank))
            connection.send("ready")
    except (EOFError, OSError):  # the notebook has ended
        shutil.rmtree(folder, ignore_errors=True)


def _end_of_output(token: str, rank: int | str) -> bytes:
    return f"\0course_lib {token} {rank}\0".encode()


Pool = ForkPool | BranchPool | WarmPool
