"""A training step of a GPT of 10 million parameters on 4 ranks: our DistributedDataParallel against torch's own."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Both, benchmark
from benchmarks.ranks import Times, make_sides, slowest_rank, time_turns
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
    """On a rank: seconds of a step with each wrapper, turn by turn."""
    def make(wrapper: Callable[[nn.Module], nn.Module]) -> Callable[[int], None]:
        model = wrapper(GPT(CONFIG))
        return partial(step, model, torch.optim.SGD(model.parameters(), lr=0.1))

    return time_turns(make_sides(*(partial(make, wrapper) for wrapper in WRAPPERS)), ROUNDS)


@benchmark(runs=5)
def ddp_step_10m_4_ranks() -> Both:
    """A step of a GPT of 10 million parameters on 4 ranks, our DistributedDataParallel against torch's own."""
    return lambda: slowest_rank(launch(alternate, world_size=WORLD_SIZE, timeout=300))
