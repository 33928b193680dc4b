"""Taking a rank out of what it is in the middle of, so that it lives on with all that it holds.

A collective that has begun cannot be called off: gloo waits in C++ until its peers have answered or gone. So its
connections are closed under it, whereupon the call raises "connection closed" in the rank itself. Python code is
stopped by a signal. What neither reaches (one long call into C, a wait for torch's store) ends with the rank's process.
"""

import os
import signal
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from course_lib.runtime import context
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
    So connections are closed for reading only, and stay open for the peers until `let_go`.
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
                if _is_connection(connection):
                    connection.shutdown(socket.SHUT_RD)
                    _kept[status.st_ino] = connection
                else:
                    connection.close()


def let_go() -> None:
    """Close what `close_connections` has left open, once all ranks have left the old process group."""
    while _kept:
        _kept.popitem()[1].close()


def _is_connection(connection: socket.socket) -> bool:
    over_network = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
    return over_network and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
