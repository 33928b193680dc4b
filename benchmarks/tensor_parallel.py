"""A training step of a GPT of 10 million parameters on 4 ranks, its layers cut: ours against torch's DTensors."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel

from benchmarks.harness import Both, benchmark
from benchmarks.ranks import Times, make_sides, slowest_rank, time_turns
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.dtensor import dtensor_gpt

WORLD_SIZE, ROUNDS, ROWS = 4, 3, 8
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, around: Callable, number: int) -> None:
    inputs, targets = batches(number, 0, 1, batch_size=ROWS)  # the same on all ranks
    optimizer.zero_grad()
    with around():
        model(inputs, targets)[1].backward()
    optimizer.step()


def alternate(sequence_parallel: bool) -> Times:
    """On a rank: seconds of a step cut by each, turn by turn."""
    def make(cut: Callable, around: Callable) -> Callable[[int], None]:
        model = cut(GPT(CONFIG), None, sequence_parallel)
        return partial(step, model, torch.optim.AdamW(model.parameters()), around)

    sides = make_sides(partial(make, parallelize, nullcontext), partial(make, dtensor_gpt, loss_parallel))
    return time_turns(sides, ROUNDS)


@benchmark(runs=5)
def tensor_parallel_step_10m_4_ranks() -> Both:
    """parallelize against torch's parallelize_module with loss_parallel."""
    return lambda: slowest_rank(launch(alternate, False, world_size=WORLD_SIZE, timeout=300))


@benchmark(runs=5)
def tensor_and_sequence_parallel_step_10m_4_ranks() -> Both:
    """The same with sequence_parallel against a plan with SequenceParallel."""
    return lambda: slowest_rank(launch(alternate, True, world_size=WORLD_SIZE, timeout=300))
