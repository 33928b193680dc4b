"""Strong scaling: a step of the small GPT on 2 and 4 ranks that share its rows, against the same step in one process.

The ratio is what the chapter draws: 1/2 is perfect scaling on 2 ranks. Where ranks outnumber the processor's cores it
cannot fall any further. Each rank has one thread, and so has the single process; or each has a GPU, where there are
enough for all.
"""

import statistics

import torch
import torch.distributed as dist

from benchmarks.harness import Work, benchmark
from benchmarks.ranks import seconds_together
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch

CONFIG = GPTConfig(num_layers=4, hidden_size=128, num_heads=4, sequence_length=64)
ROWS, STEPS = 16, 5


def step_seconds() -> float:
    """On a rank: the median time of a step, gradients averaged over the ranks; the first step is not timed."""
    torch.manual_seed(0)
    model, rank, n = GPT(CONFIG), dist.get_rank(), dist.get_world_size()
    inputs, targets = batches(0, rank, n, batch_size=ROWS, sequence_length=CONFIG.sequence_length)

    def step() -> None:
        model(inputs, targets)[1].backward()
        if n > 1:
            dist.all_reduce(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))

    times = []
    for _ in range(1 + STEPS):
        model.zero_grad()
        times.append(seconds_together(step).clock)
    return statistics.median(times[1:])


def slowest_rank(world_size: int) -> Work:
    return lambda: max(launch(step_seconds, world_size=world_size))


@benchmark(runs=5)
def strong_scaling_2_ranks() -> tuple[Work, Work]:
    """A step of 16 rows on 2 ranks against one process: 0.5 is perfect."""
    return slowest_rank(2), slowest_rank(1)


@benchmark(runs=5)
def strong_scaling_4_ranks() -> tuple[Work, Work]:
    """The same on 4 ranks: 0.25 is perfect, 0.5 is all that two cores can give."""
    return slowest_rank(4), slowest_rank(1)
