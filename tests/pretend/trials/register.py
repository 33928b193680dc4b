"""Trials by name, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from course_lib.runtime import LaunchError, launch
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

if TYPE_CHECKING:
    from tools.cells import Outcome

TRIALS: dict[str, Callable[[], None]] = {}
TIMEOUT_S = 30.0


def trial(name: str, *arguments: object) -> Callable:
    """Register a function under `name`, and with an argument of its own for each of `arguments`."""
    def register(function: Callable) -> Callable:
        if not arguments:
            TRIALS[name] = function
        for each in arguments:
            TRIALS[f"{name} {each}"] = lambda each=each: function(each)
        return function
    return register


def run_all(mode: str, only: str = "") -> list[Outcome]:
    """Every trial whose name holds `only`, on four ranks each."""
    with pretended(MODES[mode]):
        return [run(name) for name in TRIALS if only in name]


def run(name: str) -> Outcome:
    from tools.cells import Outcome  # here: ranks import this file, and nbformat would cost each 2 s

    try:
        launch(TRIALS[name], timeout=TIMEOUT_S)
    except LaunchError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(name, False, f"{type(error).__name__}: {(lines + lines)[1]}")
    return Outcome(name, True)
