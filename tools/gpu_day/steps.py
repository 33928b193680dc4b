"""What a step is: a name, a few words, and a function that returns a figure, or raises."""

import contextlib
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import tell
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

ON = {"gpu": "cpu", "pretended": "nccl"}  # --mode -> tools.harness.pretend's mode; its "cpu" pretends nothing
PASSED, NOT_MET, FAILED, NOT_RUN = "passed", "not met", "FAILED", "not run"
MOST_CHARACTERS = 200  # of an error, in a row


@dataclass(frozen=True)
class Step:
    """One row of the table, before it has run."""

    name: str
    ran: str  # what is run, in a few words
    run: Callable[[], str]  # returns the figure; raises NotMet where that is not what was expected


@dataclass(frozen=True)
class Row:
    """What became of a step."""

    step: str
    ran: str
    result: str  # PASSED, NOT_MET, FAILED or NOT_RUN
    figure: str  # what was measured, or why nothing was
    seconds: float

    def as_json(self) -> dict[str, str | float]:
        return asdict(self)


class NotMet(Exception):
    """The step ran, and what it measured is not what was expected. Its text is the figure."""


def require(holds: bool, figure: str) -> str:
    """`figure` where what was expected of it holds; raises NotMet with it otherwise."""
    if not holds:
        raise NotMet(figure)
    return figure


def now_at(what: str) -> None:
    """How far this step is: what its row says if it hangs."""
    tell("at", what)


def machine(mode: str) -> contextlib.AbstractContextManager[Any]:
    """Inside, `launch` finds the GPUs of `mode`."""
    return pretended(MODES[ON[mode]])


def words(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return textwrap.shorten(f"{type(error).__name__}: {text}", MOST_CHARACTERS)
