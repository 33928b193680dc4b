"""All-reduce from send and receive against the backend's own: 1 KiB to 64 MiB of float32, 2 and 4 ranks."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.harness import Both, benchmark
from benchmarks.ranks import Times, now, seconds_together, slowest_rank
from course_lib.collectives import halving_doubling_all_reduce, recursive_doubling_all_reduce, ring_all_reduce
from course_lib.runtime import launch

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1KiB": KIB, "32KiB": 32 * KIB, "1MiB": MIB, "4MiB": 4 * MIB, "16MiB": 16 * MIB, "64MiB": 64 * MIB}
AllReduce = Callable[[torch.Tensor], object]


def alternate(sides: tuple[AllReduce, AllReduce], num_bytes: int, rounds: int) -> Times:
    """On a rank: seconds of each side in each round, an untimed call before each timed one."""
    tensor = torch.zeros(num_bytes // 4)
    times = []
    for _ in range(rounds):
        took = []
        for side, all_reduce in enumerate(sides):
            now(side)
            all_reduce(tensor)
            took.append(seconds_together(partial(all_reduce, tensor)))
        times.append(took)
    return times


def side_by_side(ours: AllReduce, num_bytes: int, world_size: int) -> list[float]:
    """Seconds of ours and of dist.all_reduce in one launch."""
    rounds = 9 if num_bytes >= MIB else 31
    return slowest_rank(launch(alternate, (ours, dist.all_reduce), num_bytes, rounds, world_size=world_size))


def register(name: str, ours: AllReduce, size: str, world_size: int) -> None:
    def make() -> Both:
        return partial(side_by_side, ours, SIZES[size], world_size)

    make.__name__ = f"{name}_{world_size}_ranks_{size}"
    make.__doc__ = f"All-reduce of {size} on {world_size} ranks, {ours.__name__} against the backend's own."
    benchmark(runs=5)(make)


for world_size in (2, 4):
    for size in SIZES:
        register("ring", ring_all_reduce, size, world_size)
        register("halving_doubling", halving_doubling_all_reduce, size, world_size)
        if SIZES[size] <= 32 * KIB:  # what it is for
            register("recursive_doubling", recursive_doubling_all_reduce, size, world_size)
