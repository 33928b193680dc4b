"""Ranks that stay: forked from a server of their own, which is itself a fork of the one for launches (Linux)."""

import subprocess
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import psutil

from course_lib.runtime.errors import LaunchError
from course_lib.runtime.ranks.fork_pool import CLOSES_WITHIN_S, ForkPool


class BranchPool(ForkPool):
    """For the ranks of one team. When its server has ended there is no other one."""

    def __init__(self, root: ForkPool, folder: str, control: Connection, pid: int) -> None:
        super().__init__()
        self._root, self.folder, self._control, self._server = root, folder, control, _ForkedServer(pid)

    def begin(self) -> None:
        """Nothing to start: it was forked."""

    def start(self) -> None:
        """Nothing to start: it was forked."""

    def wait_for_preload(self) -> None:
        """Nothing to wait for: it was forked when all had been imported."""

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
        """None while it lives."""
        try:
            lives = self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            lives = False
        return None if lives else 0

    def wait(self, timeout: float = CLOSES_WITHIN_S) -> None:
        """Until it has ended."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("the server of a team", timeout)
            time.sleep(0.001)
