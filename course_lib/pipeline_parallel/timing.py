"""A schedule with its times: how long ranks are idle, and how many activations they hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Rational
from typing import NamedTuple

from course_lib.pipeline_parallel.schedules import Action, Schedule

Time = int | float | Fraction


class TimedAction(NamedTuple):
    """An action and when it runs. `cause` is the position in the timeline of what it had to wait for last."""

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


def in_flight(actions: Sequence[Action]) -> list[int]:
    """After the start of each of a rank's actions: how many activations, of a chunk for a micro-batch each, are held.

    The order alone decides it: F puts activations on the shelf and B takes them away. Where backward is split, I still
    needs to leave most of them for W: W takes them away.
    """
    held, counts = 0, []
    for action in actions:
        held += action.kind == "F"
        counts.append(held)
        held -= action.kind in "BW"
    return counts


@dataclass(frozen=True, repr=False)
class Timing:
    """A schedule with its times: when each of its actions ran, or would run."""

    schedule: Schedule
    timeline: tuple[TimedAction, ...]

    @cached_property
    def makespan(self) -> Time:
        """From the start of the first action to the end of the last: the step, if all ranks wait for each other."""
        return max((timed.end for timed in self.timeline), default=0)

    @cached_property
    def busy(self) -> tuple[Time, ...]:
        """Computing time of every rank."""
        return tuple(sum(timed.duration for timed in of_rank) for of_rank in self.by_rank)

    @cached_property
    def idle(self) -> tuple[Time, ...]:
        """Of every rank, the time of the makespan in which it does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @cached_property
    def by_rank(self) -> tuple[tuple[TimedAction, ...], ...]:
        """The timed actions of each rank, in their order."""
        of_ranks: list[list[TimedAction]] = [[] for _ in self.schedule.actions]
        for timed in self.timeline:
            of_ranks[timed.rank].append(timed)
        return tuple(map(tuple, of_ranks))

    @property
    def bubble_fraction(self) -> float:
        """Idle time over the whole time of all ranks, the one convention."""
        return share(sum(self.idle), self.makespan * self.schedule.num_ranks)

    @property
    def bubble_of_ideal(self) -> float:
        """Idle time over computing time, the other convention."""
        return share(sum(self.idle), sum(self.busy))

    @cached_property
    def span(self) -> Time:
        """The longest time from a rank's own first start to its own last end.

        This is a step in the zero-bubble papers: no rank waits for another one before its next step.
        """
        return max((of_rank[-1].end - of_rank[0].start for of_rank in self.by_rank if of_rank), default=0)

    @property
    def bubble_of_span(self) -> float:
        """What the rank that works longest is idle of the span: the papers' bubble rate."""
        return share(self.span - max(self.busy), self.span)

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For every rank, the most activations it holds, of one chunk for one micro-batch each."""
        return tuple(max(in_flight(actions), default=0) for actions in self.schedule.actions)

    @property
    def peak_activations(self) -> tuple[Fraction, ...]:
        """peak_in_flight in micro-batches of the whole rank: with v chunks, each holds 1/v of the rank's layers."""
        return tuple(Fraction(peak, len(chunks)) for peak, chunks in zip(self.peak_in_flight, self.schedule.stages))

    def path_to(self, last: TimedAction) -> tuple[TimedAction, ...]:
        """Actions up to `last`, each of which had to wait for the one before, without a gap but for messages."""
        path = [last]
        while path[-1].cause is not None:
            path.append(self.timeline[path[-1].cause])
        return tuple(reversed(path))


def write_count(number: Fraction) -> str:
    """A whole number as it is, another one with four figures."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.4g}"


def share(part: Time, whole: Time) -> float:
    """part / whole, rounded once only where both are exact."""
    if not whole:
        return 0.0
    # Two exact times give an exact share, so that tests can compare it with a closed form.
    exact = isinstance(part, Rational) and isinstance(whole, Rational)
    return float(Fraction(part) / Fraction(whole)) if exact else part / whole
