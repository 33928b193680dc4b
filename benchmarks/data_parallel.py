"""A training step of a GPT of 10 million parameters on 4 ranks: our DistributedDataParallel against torch's own."""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Both, Goal, benchmark
from benchmarks.ranks import side_by_side
from course_lib.data_parallel import DistributedDataParallel
from course_lib.reference import GPT, GPTConfig, batches

WORLD_SIZE = 4
# 10.1 million parameters, 41 MB of gradients. A row of 64 tokens a rank: the most communication for the least work.
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    inputs, targets = batches(number, dist.get_rank(), WORLD_SIZE, batch_size=WORLD_SIZE)
    optimizer.zero_grad()
    model(inputs, targets)[1].backward()
    optimizer.step()


def wrapped(wrapper: Callable[[nn.Module], nn.Module]) -> Callable[[int], None]:
    model = wrapper(GPT(CONFIG))
    return partial(step, model, torch.optim.SGD(model.parameters(), lr=0.1))


@benchmark(runs=3, goal=Goal(0.95))
def ddp_step_10m_4_ranks() -> Both:
    """A step of a GPT of 10 million parameters on 4 ranks, our DistributedDataParallel against torch's own."""
    return side_by_side(partial(wrapped, DistributedDataParallel),
                        partial(wrapped, nn.parallel.DistributedDataParallel))
