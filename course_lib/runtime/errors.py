"""What launch raises: short messages that name the rank and the line of the reader's cell."""

from typing import Any


class LaunchError(RuntimeError):
    """The ranks did not all return. The kernel is unharmed and no process is left behind.

    In a notebook the message stands alone: the stack inside launch would say nothing about the reader's code.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class RankFailed(LaunchError):
    """A rank raised an exception. `cause` is that exception, where it could be sent over."""

    def __init__(self, message: str, rank: int, cause: Any = None) -> None:
        super().__init__(message)
        self.rank, self.cause = rank, cause


class RankDied(LaunchError):
    """A rank's process ended before its function returned: `exit_code` as in subprocess, negative for a signal."""

    def __init__(self, message: str, rank: int, exit_code: int | None) -> None:
        super().__init__(message)
        self.rank, self.exit_code = rank, exit_code


class Deadlock(LaunchError):
    """Every rank that has not returned waits for another one, and nothing moves. `ranks` are those that wait.

    `waits[rank]` is ("send" or "recv", the other rank), for those that wait in one of them for a rank they name.
    """

    def __init__(self, message: str, ranks: tuple[int, ...], waits: dict[int, tuple[str, int]] | None = None) -> None:
        super().__init__(message)
        self.ranks, self.waits = ranks, waits or {}


class LaunchTimeout(LaunchError):
    """The ranks were still at work after `timeout` seconds. `ranks` are those that had not returned.

    `all_wait`: at the end each of them was inside a communication call; `waits` then as in Deadlock. On a machine with
    too much to do a deadlock may end so, because nothing there is quiet for long enough to be called one.
    """

    def __init__(self, message: str, ranks: tuple[int, ...], all_wait: bool = False,
                 waits: dict[int, tuple[str, int]] | None = None) -> None:
        super().__init__(message)
        self.ranks, self.all_wait, self.waits = ranks, all_wait, waits or {}


class TeamEnded(LaunchError):
    """A call in ranks that stay, one of which has ended before, or which are closed."""


class LaunchInterrupted(KeyboardInterrupt):
    """The reader interrupted the kernel; the message says where the ranks were."""

    _render_traceback_ = LaunchError._render_traceback_
