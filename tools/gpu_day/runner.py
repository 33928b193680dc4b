"""The steps of a module in a process of their own: one that hangs or dies is a row, and the next one goes on."""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.runner import Child, Hung, Over
from tools.gpu_day.steps import FAILED, NOT_RUN, Row, Step, machine

OVER = "the time for all steps is over"


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
    if time.monotonic() > until:
        yield from (Row(step.name, step.ran, NOT_RUN, OVER, 0.0) for step in steps)
        return
    deadline_s = importlib.import_module(module).DEADLINE_S
    unfinished, begun_at, at = list(steps), 0.0, ""
    try:
        names = [step.name for step in steps]
        with Child(["-m", "tools.gpu_day.child", module, mode, *names], deadline_s, until) as child:
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
    except Over:
        result, why = NOT_RUN, OVER
    if unfinished:
        # A process that did not come as far as its first step will not come to the second one either.
        lost = unfinished[:1] if begun_at else unfinished
        took_s = time.monotonic() - begun_at if begun_at else 0.0
        yield from (Row(step.name, step.ran, result, f"{why}{at and f', at {at}'}", took_s) for step in lost)
