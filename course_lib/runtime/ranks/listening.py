"""Threads of the notebook's process that listen to a rank, so that nothing it says has to wait."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from course_lib.runtime.ranks.rank_process import RankProcess


def start(listen: Callable, *arguments: Any) -> threading.Thread:
    """A daemon thread that runs listen(*arguments)."""
    thread = threading.Thread(target=listen, args=arguments, name="course_lib reader", daemon=True)
    thread.start()
    return thread


def read_output(process: RankProcess, name: str, shown: queue.Queue) -> None:
    """Put what the rank writes to its stream `name` into `shown`, as (rank, name, bytes), until it ends."""
    stream, end, tail = process.streams[name], process.end_of_output, b""
    while data := stream.read(1 << 16):
        data = tail + data
        if end and end in data:
            shown.put((process.rank, name, data[: data.index(end)]))
            return
        keep = _overlap(data, end)
        tail = data[len(data) - keep :]
        shown.put((process.rank, name, data[: len(data) - keep]))
    shown.put((process.rank, name, tail))
    stream.close()


def _overlap(data: bytes, end: bytes) -> int:
    """How many of data's last bytes may be the beginning of `end`."""
    return next((n for n in range(min(len(end) - 1, len(data)), 0, -1) if data.endswith(end[:n])), 0)
