"""The recordings of this rank: every closed recorder leaves its log here; `launch` collects them by `take()`.

A log is plain data (no tensors, no process groups), so it travels from a rank to the notebook beside the
result, and logs of many ranks merge into one. Of recorders nested in each other only the outermost is kept:
its log already holds what the inner ones saw, and merging both would count everything twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from course_lib.pictures.drawn import Drawn

_closed: list["Recording"] = []
_open: list["Recording"] = []


class Recording(Drawn):
    """Base of every log."""

    ranks: tuple[int, ...]


@contextmanager
def keeping(log: Recording) -> Iterator[None]:
    """Keep `log` for `take()` when the block ends, also when it ends with an exception."""
    outermost = not any(type(other) is type(log) for other in _open)
    _open.append(log)
    try:
        yield
    finally:
        _open[:] = [other for other in _open if other is not log]  # two logs with the same events are equal
        if outermost:
            _closed.append(log)


def open_recording(kind: type[Recording]) -> Recording | None:
    """The outermost log of this `kind` that is being written, which has what all inner ones see."""
    return next((log for log in _open if type(log) is kind), None)


def take() -> list[Recording]:
    """Return the logs closed since the last call, oldest first, and forget them."""
    taken = _closed.copy()
    _closed.clear()
    return taken


def this_rank() -> int:
    """The global rank of the calling process, 0 where no process group is initialised."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
