"""What a step is, and how steps run: one after the other, each with a limit. What fails or hangs is in the ranks."""

import contextlib
import signal
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

ON = {"gpu": "cpu", "pretended": "nccl"}  # --mode -> tools.harness.pretend's mode; its "cpu" pretends nothing
PASSED, NOT_MET, FAILED, NOT_RUN = "passed", "not met", "FAILED", "not run"
OVER = "the time for all steps is over"
LIMIT_S = 25.0
MOST_CHARACTERS = 200  # of an error, in a row


@dataclass(frozen=True)
class Step:
    """One row of the table, before it has run."""

    name: str
    ran: str  # what is run, in a few words
    run: Callable[[], str]  # returns the figure; raises NotMet where that is not what was expected
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Row:
    """What became of a step."""

    step: str
    ran: str
    result: str  # PASSED, NOT_MET, FAILED or NOT_RUN
    figure: str  # what was measured, or why nothing was
    seconds: float


class NotMet(Exception):
    """The step ran, and what it measured is not what was expected. Its text is the figure."""


class Hung(BaseException):
    """The step's time is over; no handler of errors on the way is meant to hear of it."""


def require(holds: bool, figure: str) -> str:
    """`figure` where what was expected of it holds; raises NotMet with it otherwise."""
    if not holds:
        raise NotMet(figure)
    return figure


def machine(mode: str) -> contextlib.AbstractContextManager[Any]:
    """Inside, `launch` finds the GPUs of `mode`."""
    return pretended(MODES[ON[mode]])


def rows(steps: Sequence[Step], within_s: float, before: Callable[[Step], None] = lambda step: None) -> Iterator[Row]:
    """A row of each step, in order, as soon as it is there; `before` hears of each that is about to run.

    When `within_s` seconds are over, the step that runs is ended, and what is left is not run.
    """
    until = time.monotonic() + within_s
    for step in steps:
        began = time.monotonic()
        if began < until:
            before(step)
        yield Row(step.name, step.ran, *outcome(step, until - began), time.monotonic() - began)


def outcome(step: Step, left_s: float) -> tuple[str, str]:
    """(result, figure) of a step for which so much time is left."""
    def ring(*_: object) -> None:
        raise Hung

    if left_s <= 0:
        return NOT_RUN, OVER
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(step.limit_s, left_s))
    try:
        return PASSED, step.run()
    except Hung:
        return (NOT_RUN, OVER) if left_s < step.limit_s else (FAILED, f"hung: not over after {step.limit_s:g} s")
    except NotMet as not_met:
        return NOT_MET, str(not_met)
    except Exception as error:
        traceback.print_exc()
        return FAILED, textwrap.shorten(f"{type(error).__name__}: {error}", MOST_CHARACTERS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
