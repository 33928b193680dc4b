"""A training step of a GPT of 10 million parameters on 4 ranks: our DistributedDataParallel against torch's own."""

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Work, benchmark
from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch

WORLD_SIZE, ROUNDS = 4, 5
# 10.0 million parameters, 40 MB of gradients. A row of 64 tokens a rank: the most communication for the least work.
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)
WRAPPERS = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs, targets = batches(number, dist.get_rank(), WORLD_SIZE, batch_size=WORLD_SIZE)
    optimizer.zero_grad()
    model(inputs, targets)[1].backward()
    optimizer.step()


def alternate() -> list[tuple[float, float]]:
    """On a rank: seconds of a step with each wrapper, turn by turn. Two are not timed: torch rebuilds buckets."""
    pairs = []
    for wrapper in WRAPPERS:
        torch.manual_seed(0)
        model = wrapper(GPT(CONFIG))
        pairs.append((model, torch.optim.SGD(model.parameters(), lr=0.1)))
    times = []
    for number in range(ROUNDS + 2):
        took = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            started = time.perf_counter()
            step(*pairs[side], number)
            took[side] = time.perf_counter() - started
        times.append(tuple(took))
    return times[2:]


class SideBySide:
    """Both wrappers timed in the same launch: what slows the machine for a moment slows both."""

    def __init__(self) -> None:
        self.unread: tuple[list[float], list[float]] = ([], [])

    def seconds(self, side: int) -> float:
        """Median over the rounds of one launch of the time until the last rank is done; 0 is ours, 1 is torch's."""
        if not self.unread[side]:
            ranks = launch(alternate, world_size=WORLD_SIZE, timeout=300)
            for each in (0, 1):
                slowest = [max(rank[turn][each] for rank in ranks) for turn in range(ROUNDS)]
                self.unread[each].append(statistics.median(slowest))
        return self.unread[side].pop()


@benchmark(runs=5)
def ddp_step_10m_4_ranks() -> tuple[Work, Work]:
    """A step of a GPT of 10 million parameters on 4 ranks, our DistributedDataParallel against torch's own."""
    pair = SideBySide()
    return lambda: pair.seconds(0), lambda: pair.seconds(1)
