"""Ranks forked from a warm server (Linux)."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any

from course_lib.runtime import context
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.ranks import home
from course_lib.runtime.ranks.home import PROJECT
from course_lib.runtime.ranks.preload import PRELOAD, SERVES_AFTER
from course_lib.runtime.ranks.rank_process import RankProcess

_HERE = Path(__file__).resolve().parent
# A fork copies the page tables of all that the server has imported. With that memory in huge pages (glibc 2.35+, and
# only through malloc), measured: fork 2 ms instead of 12, the end of a rank 5 ms instead of 16.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "PYTHONMALLOC": "malloc"}


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
