"""One rank as the notebook's process sees it: the same from either pool."""

import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, BinaryIO

from course_lib.runtime.ranks.trace import Closed, trace


@dataclass
class RankProcess:
    """A living rank, and what connects it to the notebook."""

    rank: int
    pid: int
    connection: Connection
    streams: dict[str, BinaryIO]  # "stdout", "stderr"
    end_of_output: bytes = b""  # what ends a call's part of a stream; without it, its closing does
    unread: dict[str, bytes] = field(default_factory=dict)  # stream -> what came behind the end of a call's part
    reads: dict[str, threading.Lock] = field(init=False)  # stream -> taken by the call that reads from it

    def __post_init__(self) -> None:
        self.reads = {name: threading.Lock() for name in self.streams}

    def send(self, message: Any) -> None:
        """Send a message to the rank. OSError where it has ended."""
        trace("notebook", f"rank {self.rank}", message)
        self.connection.send(message)

    def receive(self) -> Any:
        """The next message. EOFError or OSError where the rank has ended."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            trace(f"rank {self.rank}", "notebook", Closed())
            raise
        trace(f"rank {self.rank}", "notebook", message)
        return message
