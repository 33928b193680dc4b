"""What benchmarks do on ranks where both sides are timed in the same launch: what slows the machine slows both."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness import SIDES, tell
from course_lib.runtime import seconds

Side = TypeVar("Side")
Times = list[Sequence[float]]  # of one rank: for every round the seconds of each side


def now(side: int) -> None:
    """What follows is this side's: if it hangs, the row will say so."""
    if dist.get_rank() == 0 and side < len(SIDES):
        tell("side", SIDES[side])


def seconds_together(work: Callable[[], object]) -> float:
    """Until this rank is done, its GPU too where it has one, from when all ranks had come."""
    dist.barrier()
    return seconds(work)


def in_turns(number: int, num_sides: int = 2) -> Sequence[int]:
    """The order of the sides in round `number`: another one begins each time."""
    first = number % num_sides
    return (*range(first, num_sides), *range(first))


def make_sides(*makers: Callable[[], Side]) -> list[Side]:
    """What each side begins with, from the same seed."""
    sides = []
    for side, make in enumerate(makers):
        now(side)
        torch.manual_seed(0)
        sides.append(make())
    return sides


def time_turns(steps: Sequence[Callable[[int], object]], rounds: int, untimed: int = 2,
               clock: Callable[[Callable[[], object]], float] = seconds_together) -> Times:
    """Seconds of each side's step, called with the number of the round, turn by turn.

    `untimed` rounds come first: torch rebuilds buckets there, and shapes are agreed upon.
    """
    times = []
    for number in range(untimed + rounds):
        took = [0.0] * len(steps)
        for side in in_turns(number, len(steps)):
            now(side)
            took[side] = clock(partial(steps[side], number))
        times.append(took)
    return times[untimed:]


def slowest_rank(ranks: Sequence[Times]) -> list[float]:
    """For each side the median over the rounds of the time until the last rank was done."""
    rounds = zip(*ranks)  # (ranks, sides) each
    return [statistics.median(side) for side in zip(*([max(rank) for rank in zip(*times)] for times in rounds))]
