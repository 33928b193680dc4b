"""What benchmarks do on ranks where both sides are timed in the same launch: what slows the machine slows both."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from benchmarks.harness import SIDES, Both, Seconds, cpu_seconds, tell
from course_lib.runtime import launch, seconds

Side = TypeVar("Side")
Times = list[Sequence[Seconds]]  # of one rank: for every round the seconds of each side


def now(side: int) -> None:
    """What follows is this side's: if it hangs, the row will say so."""
    if dist.get_rank() == 0 and side < len(SIDES):
        tell("side", SIDES[side])


def seconds_together(work: Callable[[], object]) -> Seconds:
    """Until this rank is done, its GPU too where it has one, from when all ranks had come.

    CPU seconds are read once all are done: until then this rank's threads may have to send.
    """
    dist.barrier()
    cpu_before = cpu_seconds()
    clock = seconds(work)
    dist.barrier()
    return Seconds(clock, cpu_seconds() - cpu_before)


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
               measure: Callable[[Callable[[], object]], Seconds] = seconds_together) -> Times:
    """Seconds of each side's step, called with the number of the round, turn by turn.

    `untimed` rounds come first: torch rebuilds buckets there, and shapes are agreed upon.
    """
    times = []
    for number in range(untimed + rounds):
        took = [Seconds(0.0)] * len(steps)
        for side in in_turns(number, len(steps)):
            now(side)
            took[side] = measure(partial(steps[side], number))
        times.append(took)
    return times[untimed:]


def over_ranks(ranks: Sequence[Times]) -> list[Seconds]:
    """For each side the medians over the rounds: of the time until the last rank was done, of a rank's CPU seconds."""
    by_side = zip(*(zip(*of_ranks) for of_ranks in zip(*ranks)))  # each (rounds, ranks)
    return [Seconds(statistics.median(max(took.clock for took in of_ranks) for of_ranks in rounds),
                    statistics.median(statistics.mean(took.cpu for took in of_ranks) for of_ranks in rounds))
            for rounds in map(list, by_side)]


def alternate(rounds: int, *makers: Callable[[], Callable[[int], object]]) -> Times:
    """On a rank: seconds of a step of each, turn by turn."""
    return time_turns(make_sides(*makers), rounds)


def side_by_side(*makers: Callable[[], Callable[[int], object]], rounds: int = 5, world_size: int = 4) -> Both:
    """A benchmark of the steps that these make on each rank, in one launch."""
    return lambda: over_ranks(launch(alternate, rounds, *makers, world_size=world_size, timeout=300))
