"""A schedule with its times: what simulate makes, what is measured on ranks, and what pictures draw."""

from fractions import Fraction
from typing import NamedTuple, Protocol

from course_lib.pipeline_parallel.actions import Action, Schedule

Time = int | float | Fraction


class Box(NamedTuple):
    """An action and when it runs. `cause` is the place in the timeline of what it had to wait for last."""

    rank: int
    stage: int
    action: Action
    start: Time
    end: Time
    cause: int | None

    @property
    def duration(self) -> Time:
        return self.end - self.start


class Timed(Protocol):
    """Of a Simulation, what a picture shows."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def timeline(self) -> tuple[Box, ...]: ...

    @property
    def makespan(self) -> Time: ...

    @property
    def bubble_fraction(self) -> float: ...

    @property
    def bubble_of_ideal(self) -> float: ...

    @property
    def bubble_of_span(self) -> float: ...

    @property
    def critical_path(self) -> tuple[Box, ...]: ...

    @property
    def peak_activations(self) -> tuple[Fraction, ...]: ...


def write_count(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.4g}"
