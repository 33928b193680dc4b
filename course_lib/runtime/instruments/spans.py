"""`span(name)`: a name for a stretch of code, which recorders see: a bar in a timeline, a phase of memory."""

from typing import Any, Protocol


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
