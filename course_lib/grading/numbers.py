"""Exercises whose answer is one number: compare it, and name the mistake that gives the same.

A trial is one call on one rank; a likely mistake is written down as the number that it gives.
"""

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from course_lib.grading.exercise import Exercise, Traffic, Trial

TOLERANCE = 1e-6  # relative: the order of the operations does not matter, a factor does


class NumberExercise(Exercise):
    """The function gets the arguments of the trial and returns a number. `cases`: what is asked about, and "
    "arguments."""

    operations = None
    unit: ClassVar[str] = ""
    cases: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]]  # the most telling first

    @abstractmethod
    def expected(self, *arguments: Any) -> float:
        """The right answer."""

    @abstractmethod
    def mistakes(self, *arguments: Any) -> Iterable[tuple[str, float]]:
        """Likely mistakes: the cause, and the number it gives. The most particular first."""

    @abstractmethod
    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        """One more case, at random: published answers could be looked up."""

    def trials(self, seed: int) -> list[Trial]:
        cases = (*self.cases, self.draw(random.Random(seed)))
        return [Trial([list(arguments)], label) for label, arguments in cases]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> dict[str, Any]:
        value = function(*inputs)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"value": float(value) if number else f"a {type(value).__name__}" if value is not None else "nothing"}

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        given = answers[0].get("value") if len(answers) == 1 and type(answers[0]) is dict else "something else"
        arguments = trial.inputs[0]
        right = self.expected(*arguments)
        if type(given) is not float:
            said = given[:80] if type(given) is str else "something else"
            return f"{trial.label}: it returned {said}: expected a number, {self.written(right)}"
        if near(given, right):
            return None
        cause = next((cause for cause, value in self.mistakes(*arguments) if near(given, value)), None)
        comparable = right and math.isfinite(given)
        off = f": {cause}" if cause else f", {given / right:.6g} times as much" if comparable else ""
        return f"{trial.label}: it returned {self.written(given)}, expected {self.written(right)}{off}"

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        return f"{trial.label}: {self.written(self.expected(*trial.inputs[0]))}"

    def written(self, value: float) -> str:
        return f"{value:.6g} {self.unit}".rstrip()


def near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12)
