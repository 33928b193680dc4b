"""Exercises whose answer is one number. A trial is one call on one rank."""

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from course_lib.costs.links import Link
from course_lib.costs.network import Network
from course_lib.grading.compare import EXACT, alike, describe, is_number, part
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, quantity


@lru_cache(maxsize=64)
def network_of_rates(per_node: int, inside: float, card: float) -> Network:
    """Nodes in which each device has a card of its own; bytes/s of a device inside, and of a card. No latency."""
    return Network(per_node, Link.of_rate(inside), Link.of_rate(card), per_node)


class NumberExercise(Exercise):
    """The function gets the arguments of the trial and returns a number, as `solve` does.

    Where that is a whole number, only this one is right; a float is, within `tolerance`.
    """

    unit: ClassVar[str] = ""
    cases: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]]  # what is asked about, arguments; the most telling first
    tolerance = (1e-6, 1e-12)  # the order of the operations does not matter, a factor does
    run = staticmethod(plain.number)

    @abstractmethod
    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        """One more case, at random: published answers could be looked up."""

    def trials(self, seed: int) -> list[Trial]:
        cases = (*self.cases, self.draw(random.Random(seed)))
        return [Trial([list(arguments)], label) for label, arguments in cases]

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def select_parts(self, answers: list[Any]) -> Any:
        return part(answers[0], "value") if len(answers) == 1 else None

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given, right = self.select_parts(answers), self.solve(*self.arguments(trial))
        if alike(given, right, EXACT if type(right) is int else self.tolerance):
            return None
        if not is_number(given):
            return f"it returned {describe(given)}: expected a number, {quantity(right, self.unit)}"
        times = f", {given / right:.6g} times as much" if right and math.isfinite(given) else ""
        return self.opening(trial, answers).removesuffix(": ") + times

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        given, right = self.select_parts(answers), self.solve(*self.arguments(trial))
        if not is_number(given):
            return ""
        return f"it returned {quantity(given, self.unit)}, expected {quantity(right, self.unit)}: "

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [Spent("returned", self.select_parts(answers), self.solve(*self.arguments(trial)), self.unit,
                      limit="expected {}", slack=math.inf)]
