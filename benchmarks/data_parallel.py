"""A training step of a GPT of 10 million parameters on 4 ranks: our DistributedDataParallel against torch's own."""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Both, benchmark
from benchmarks.ranks import Times, in_turns, now, seconds_together, slowest_rank
from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch

WORLD_SIZE, ROUNDS = 4, 5
# 10.1 million parameters, 41 MB of gradients. A row of 64 tokens a rank: the most communication for the least work.
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)
WRAPPERS = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs, targets = batches(number, dist.get_rank(), WORLD_SIZE, batch_size=WORLD_SIZE)
    optimizer.zero_grad()
    model(inputs, targets)[1].backward()
    optimizer.step()


def alternate() -> Times:
    """On a rank: seconds of a step with each wrapper, turn by turn. Two are not timed: torch rebuilds buckets."""
    pairs = []
    for side, wrapper in enumerate(WRAPPERS):
        now(side)
        torch.manual_seed(0)
        model = wrapper(GPT(CONFIG))
        pairs.append((model, torch.optim.SGD(model.parameters(), lr=0.1)))
    times = []
    for number in range(ROUNDS + 2):
        took = [0.0, 0.0]
        for side in in_turns(number + 1):
            now(side)
            took[side] = seconds_together(partial(step, *pairs[side], number))
        times.append(took)
    return times[2:]


@benchmark(runs=5)
def ddp_step_10m_4_ranks() -> Both:
    """A step of a GPT of 10 million parameters on 4 ranks, our DistributedDataParallel against torch's own."""
    return lambda: slowest_rank(launch(alternate, world_size=WORLD_SIZE, timeout=300))
