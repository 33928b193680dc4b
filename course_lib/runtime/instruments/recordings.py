"""The recordings of this rank: every closed recorder leaves its log here; `launch` collects them by `take()`.

A log is plain data (no tensors, no process groups), so it travels from a rank to the notebook beside the
result, and logs of many ranks merge into one. Of recorders nested in each other only the outermost is kept:
its log already holds what the inner ones saw, and merging both would count everything twice.

`span(name)`: a name for a stretch of code, which recorders see: a bar in a timeline, a phase of memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

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


class SpanListener(Protocol):
    """What a recorder that wants to hear of spans provides."""

    def begin_span(self, name: str, labels: dict[str, Any]) -> None:
        """A span of this name begins on the calling thread; `labels` are what the reader gave with it."""

    def end_span(self) -> None:
        """The innermost open span has ended."""


span_listeners: list[SpanListener] = []


class span:  # noqa: N801  used like a function; a class, because a generator costs several times as much
    """`with span("forward", micro_batch=3):` names the block. Spans nest; unheard they cost about 1 us."""

    __slots__ = ("name", "labels", "heard_by")

    def __init__(self, name: str, **labels: Any) -> None:
        self.name, self.labels = name, labels

    def __enter__(self) -> None:
        # Remembered: a recorder opened inside the span must not hear its end.
        self.heard_by = tuple(span_listeners)
        for listener in self.heard_by:
            listener.begin_span(self.name, self.labels)

    def __exit__(self, *exc_info: object) -> None:
        for listener in self.heard_by:
            listener.end_span()
