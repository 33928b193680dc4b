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
        """How long the action runs."""
        return self.end - self.start


class Timed(Protocol):
    """What a picture shows of a Simulation, or of what was measured on ranks."""

    @property
    def schedule(self) -> Schedule:
        """What was run or simulated."""

    @property
    def timeline(self) -> tuple[Box, ...]:
        """All boxes; Box.cause counts places in it."""

    @property
    def makespan(self) -> Time:
        """When the last box ends."""

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time of all ranks."""

    @property
    def bubble_of_ideal(self) -> float:
        """Idle time over computing time."""

    @property
    def bubble_of_span(self) -> float:
        """What the busiest rank is idle of the longest stretch from a rank's own first box to its last."""

    @property
    def critical_path(self) -> tuple[Box, ...]:
        """Boxes each of which had to wait for the one before, up to the end."""

    @property
    def peak_activations(self) -> tuple[Fraction, ...]:
        """By rank, the most activations that it holds at once, in micro-batches of the whole rank."""


def write_count(number: Fraction) -> str:
    """A whole number as it is, another one with four figures."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.4g}"
