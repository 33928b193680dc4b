"""All-reduce from send and receive against gloo's own dist.all_reduce: 1 KiB to 64 MiB of float32, 2 and 4 ranks."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.harness import Work, benchmark
from course_lib.collectives import halving_doubling_all_reduce, ring_all_reduce
from course_lib.runtime import launch

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1KiB": KIB, "32KiB": 32 * KIB, "1MiB": MIB, "4MiB": 4 * MIB, "16MiB": 16 * MIB, "64MiB": 64 * MIB}
AllReduce = Callable[[torch.Tensor], object]


def alternate(sides: tuple[AllReduce, AllReduce], num_bytes: int, rounds: int) -> list[tuple[float, float]]:
    """On a rank: seconds of each side in each round, an untimed call before each timed one."""
    tensor = torch.zeros(num_bytes // 4)
    times = []
    for _ in range(rounds):
        took = []
        for all_reduce in sides:
            all_reduce(tensor)
            dist.barrier()
            started = time.perf_counter()
            all_reduce(tensor)
            took.append(time.perf_counter() - started)
        times.append(tuple(took))
    return times


class SideBySide:
    """Two all-reduces timed in the same launch, turn by turn: what slows the machine for a moment slows both."""

    def __init__(self, ours: AllReduce, num_bytes: int, world_size: int) -> None:
        self.sides = (ours, dist.all_reduce)
        self.num_bytes, self.world_size = num_bytes, world_size
        self.unread: tuple[list[float], list[float]] = ([], [])

    def seconds(self, side: int) -> float:
        """Median over the rounds of one launch of the time until the last rank is done; 0 is ours, 1 is gloo's."""
        if not self.unread[side]:
            rounds = 9 if self.num_bytes >= MIB else 31
            ranks = launch(alternate, self.sides, self.num_bytes, rounds, world_size=self.world_size)
            for each in (0, 1):
                slowest = [max(rank[turn][each] for rank in ranks) for turn in range(rounds)]
                self.unread[each].append(statistics.median(slowest))
        return self.unread[side].pop()


def register(name: str, ours: AllReduce, size: str, world_size: int) -> None:
    def make() -> tuple[Work, Work]:
        pair = SideBySide(ours, SIZES[size], world_size)
        return lambda: pair.seconds(0), lambda: pair.seconds(1)

    make.__name__ = f"{name}_{world_size}_ranks_{size}"
    make.__doc__ = f"All-reduce of {size} on {world_size} ranks, {ours.__name__} against gloo's own."
    benchmark(runs=5)(make)


for world_size in (2, 4):
    for size in SIZES:
        register("ring", ring_all_reduce, size, world_size)
        register("halving_doubling", halving_doubling_all_reduce, size, world_size)
