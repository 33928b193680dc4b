"""COURSE_LIB_TRACE=FILE: one line for every message between the notebook, its server and its ranks.

    12:00:01.203117  notebook -> rank 2    Task            rank 2 of 4, gloo, call of 612 bytes
    12:00:01.207344  rank 2 -> notebook    Returned        payload of 121 bytes

All of them pass through the notebook's process, which writes them as it sends and receives.
"""

import os
from datetime import datetime
from typing import Any

_VARIABLE = "COURSE_LIB_TRACE"
_MAX_LETTERS = 120


def trace(sender: str, receiver: str, message: Any) -> None:
    """Append one line to the file, where the environment names one."""
    path = os.environ.get(_VARIABLE)
    if path:
        kind, summary = _kind_and_summary(message)
        now = datetime.now().strftime("%H:%M:%S.%f")
        line = f"{now}  {f'{sender} -> {receiver}':22}{kind:16}{summary}".rstrip()
        with open(path, "a", encoding="utf-8") as file:  # one write a line: several threads send
            file.write(line + "\n")


class Closed:
    """Stands for the message that will not come: the other end has closed the connection."""

    def summary(self) -> str:
        """What the end of a connection means."""
        return "no more messages will come"


def _kind_and_summary(message: Any) -> tuple[str, str]:
    if hasattr(message, "summary"):
        return type(message).__name__, " ".join(message.summary().split())[:_MAX_LETTERS]
    if isinstance(message, tuple) and message and isinstance(message[0], str):  # a request to the server
        return message[0], " ".join(map(repr, message[1:]))[:_MAX_LETTERS]
    if isinstance(message, str):
        return message, ""
    return type(message).__name__, repr(message)[:_MAX_LETTERS]
