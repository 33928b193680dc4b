"""The logs that record_communication, record_memory and record_timeline closed in this process, for launch to collect."""

from typing import Any

_closed: list[Any] = []


def add(log: Any) -> None:
    """Called by a recorder when it closes."""
    _closed.append(log)


def take() -> list[Any]:
    """The logs closed since the last call, in order; forgets them."""
    taken = list(_closed)
    _closed.clear()
    return taken
