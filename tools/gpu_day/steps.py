"""What a step is, and how steps run: one after the other, each with a limit. What fails or hangs is in the ranks."""

import contextlib
import signal
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

ON = {"gpu": "shared", "pretended": "nccl"}  # --mode -> tools.harness.pretend's mode; "shared" pretends nothing
PASSED, NOT_MET, FAILED, NOT_RUN = "passed", "not met", "FAILED", "not run"
OVER = "the time for all steps is over"
LIMIT_S = 25.0
MOST_CHARACTERS = 200  # of an error, in a row


@dataclass(frozen=True)
class Step:
    """One row of the table, before it has run."""

    name: str
    ran: str  # what is run, in a few words
    run: Callable[[], "Figure | str"]  # raises NotMet where what was measured is not what was expected
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Row:
    """What became of a step."""

    step: str
    ran: str
    result: str  # PASSED, NOT_MET, FAILED or NOT_RUN
    figure: str  # what was measured, or why nothing was
    seconds: float
    numbers: dict[str, Any] = field(default_factory=dict)  # what the figure was written from, by name, with units


@dataclass(frozen=True)
class Figure:
    """What a step measured: a line for people, and the numbers behind it, for whoever goes on with them."""

    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


class NotMet(Exception):
    """The step ran, and what it measured is not what was expected. Its text is the figure."""

    def __init__(self, figure: Figure) -> None:
        super().__init__(figure.text)
        self.figure = figure


class NotHere(Exception):
    """The step needs what this machine does not have. Its text says what."""


class Hung(BaseException):
    """The step's time is over; no handler of errors on the way is meant to hear of it."""


def require(holds: bool, text: str, **numbers: Any) -> Figure:
    """The figure where what was expected of it holds; raises NotMet with it otherwise."""
    figure = Figure(text, numbers)
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
        result, figure = outcome(step, until - began)
        yield Row(step.name, step.ran, result, figure.text, time.monotonic() - began, figure.numbers)


def outcome(step: Step, left_s: float) -> tuple[str, Figure]:
    """(result, figure) of a step for which so much time is left."""
    def ring(*_: object) -> None:
        raise Hung

    if left_s <= 0:
        return NOT_RUN, Figure(OVER)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(step.limit_s, left_s))
    try:
        figure = step.run()
        return PASSED, Figure(figure) if isinstance(figure, str) else figure
    except Hung:
        return (NOT_RUN, Figure(OVER)) if left_s < step.limit_s else (
            FAILED, Figure(f"hung: not over after {step.limit_s:g} s"))
    except NotMet as not_met:
        return NOT_MET, not_met.figure
    except NotHere as missing:
        return NOT_RUN, Figure(str(missing))
    except Exception as error:
        traceback.print_exc()
        return FAILED, Figure(textwrap.shorten(f"{type(error).__name__}: {error}", MOST_CHARACTERS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
