"""What a step is, and how steps run: those of a module in a process, and if one hangs or dies, the next in a new one.

    python -m tools.gpu_day.steps MODULE MODE NAME ...    is such a process; by hand it prints tracebacks
"""

import contextlib
import importlib
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import tell
from benchmarks.runner import Child, Hung, Over
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

ON = {"gpu": "cpu", "pretended": "nccl"}  # --mode -> tools.harness.pretend's mode; its "cpu" pretends nothing
PASSED, NOT_MET, FAILED, NOT_RUN = "passed", "not met", "FAILED", "not run"
OVER = "the time for all steps is over"
MOST_CHARACTERS = 200  # of an error, in a row


@dataclass(frozen=True)
class Step:
    """One row of the table, before it has run."""

    name: str
    ran: str  # what is run, in a few words
    run: Callable[[], str] | None = None  # returns the figure, or raises; None: its module has `run_all`


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


def planned(modules: Sequence[str], mode: str) -> dict[str, list[Step]]:
    """module -> its steps on the machine of `mode`."""
    with machine(mode):
        return {module: importlib.import_module(module).steps(mode) for module in modules}


def rows(plan: dict[str, list[Step]], mode: str, within_s: float,
         before: Callable[[Step], None] = lambda step: None) -> Iterator[Row]:
    """A row of each step, in order, as soon as it is there; `before` hears of each that is about to run.

    A step in which nothing happens for its module's DEADLINE_S seconds has failed. When `within_s` seconds are over,
    the step that runs is ended, and what is left is not run.
    """
    until = time.monotonic() + within_s
    for module, steps in plan.items():
        left = list(steps)
        while left:
            for row in _until_one_is_lost(module, left, mode, until, before):
                left.pop(0)
                yield row


def _until_one_is_lost(module: str, steps: Sequence[Step], mode: str, until: float,
                       before: Callable[[Step], None]) -> Iterator[Row]:
    """Rows up to that of the first step that hangs, or that ends the process."""
    unfinished, begun_at, at = list(steps), 0.0, ""
    command = ["-m", "tools.gpu_day.steps", module, mode, *(step.name for step in steps)]
    result, why = NOT_RUN, OVER
    with contextlib.suppress(Over):
        if time.monotonic() > until:
            raise Over
        try:
            with Child(command, importlib.import_module(module).DEADLINE_S, until) as child:
                for kind, *values in child.events():
                    if kind == "begins":
                        begun_at, at = time.monotonic(), ""
                        before(unfinished[0])
                    elif kind == "at":
                        (at,) = values
                    elif kind == "ends":
                        step = unfinished.pop(0)
                        yield Row(step.name, step.ran, *values)
                result, why = FAILED, child.how_it_ended()
        except Hung as hung:
            result, why = FAILED, str(hung)
    # A process that did not come as far as its first step will not come to the second one either.
    took_s = time.monotonic() - begun_at if begun_at else 0.0
    for step in unfinished[:1] if begun_at else unfinished:
        yield Row(step.name, step.ran, result, f"{why}{at and f', at {at}'}", took_s)


def main(module: str, mode: str, *names: str) -> None:
    with machine(mode):
        found = importlib.import_module(module)
        if hasattr(found, "run_all"):
            return found.run_all(names)
        known = {step.name: step for step in found.steps(mode)}
        for name in names:
            timed(known[name].run)


def timed(run: Callable[[], str]) -> None:
    """Do a step, and tell what became of it."""
    tell("begins")
    started = time.perf_counter()
    try:
        result, figure = PASSED, run()
    except NotMet as not_met:
        result, figure = NOT_MET, str(not_met)
    except Exception as error:
        traceback.print_exc()
        result, figure = FAILED, words(error)
    tell("ends", result, figure, time.perf_counter() - started)


def words(error: BaseException) -> str:
    """An error in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", MOST_CHARACTERS)


if __name__ == "__main__":
    from tools.gpu_day import steps  # the module whose NotMet the steps raise

    steps.main(*sys.argv[1:])
