"""A training step of a GPT of 10 million parameters on 4 ranks, its layers cut: ours against torch's DTensors."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel

from benchmarks.harness import Both, Goal, benchmark
from benchmarks.ranks import side_by_side
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.dtensor import dtensor_gpt

ROWS = 8
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, around: Callable, number: int) -> None:
    inputs, targets = batches(number, 0, 1, batch_size=ROWS)  # the same on all ranks
    optimizer.zero_grad()
    with around():
        model(inputs, targets)[1].backward()
    optimizer.step()


def cut(by: Callable, sequence_parallel: bool, around: Callable) -> Callable[[int], None]:
    model = by(GPT(CONFIG), None, sequence_parallel)
    return partial(step, model, torch.optim.AdamW(model.parameters()), around)


def against_dtensors(sequence_parallel: bool) -> Both:
    return side_by_side(partial(cut, parallelize, sequence_parallel, nullcontext),
                        partial(cut, dtensor_gpt, sequence_parallel, loss_parallel))


@benchmark(runs=3, goal=Goal(0.8))
def tensor_parallel_step_10m_4_ranks() -> Both:
    """Tensor parallelism: parallelize against torch's parallelize_module with loss_parallel."""
    return against_dtensors(sequence_parallel=False)


@benchmark(runs=3, goal=Goal(0.5))
def tensor_and_sequence_parallel_step_10m_4_ranks() -> Both:
    """Tensor and sequence parallelism: parallelize against torch's plan with SequenceParallel."""
    return against_dtensors(sequence_parallel=True)
