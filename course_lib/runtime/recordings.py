"""The recordings of this rank: every closed recorder leaves its log here; `launch` collects them by `take()`.

A log is plain data (no tensors, no process groups), so it travels from a rank to the notebook beside the
result, and logs of many ranks merge into one. Of recorders nested in each other only the outermost is kept:
its log already holds what the inner ones saw, and merging both would count everything twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

_closed: list["Recording"] = []
_open: list["Recording"] = []


class Recording:
    """Base of every log: draws itself in a notebook, as a sentence and as a table or a picture."""

    ranks: tuple[int, ...]

    def finding(self) -> str:
        """One sentence without times or addresses: a strict notebook test compares it."""
        raise NotImplementedError

    def html(self) -> str | None:
        """The log as a table, or None."""
        return None

    def png(self) -> bytes | None:
        """The log as a picture, or None."""
        return None

    def __repr__(self) -> str:
        return self.finding()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        drawn = {"text/plain": self.finding(), "text/html": self.html(), "image/png": self.png()}
        return {mime: data for mime, data in drawn.items() if data is not None}


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


def take() -> list[Recording]:
    """Return the logs closed since the last call, oldest first, and forget them."""
    taken = _closed.copy()
    _closed.clear()
    return taken


def this_rank() -> int:
    """The global rank of the calling process, 0 where no process group is initialised."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def human_bytes(num_bytes: float) -> str:
    """`num_bytes` with a decimal unit: 512 B, 1.5 kB, 20.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000 or unit == "GB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable: GB always returns")
