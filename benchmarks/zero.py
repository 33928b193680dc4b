"""A training step of a GPT of 10 million parameters on 4 ranks, sharded: ours, torch's own, DeepSpeed's."""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Work, benchmark
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from course_lib.zero.deepspeed import deepspeed_engine

WORLD_SIZE, ROUNDS = 4, 5
# 10.1 million parameters, 41 MB of gradients. A row of 64 tokens a rank: the most communication for the least work.
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)
Pair = tuple[nn.Module, torch.optim.Optimizer | None]  # None: a DeepSpeedEngine is both


def zero(stage: int) -> Pair:
    model = GPT(CONFIG)
    return model, ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=stage)


def zero_redundancy_optimizer() -> Pair:
    model = DistributedDataParallel(GPT(CONFIG))
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)


def fully_sharded() -> Pair:
    model = FullyShardedDataParallel(GPT(CONFIG))
    return model, torch.optim.AdamW(model.parameters())


def fully_shard_of_torch() -> Pair:
    model = GPT(CONFIG)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def deepspeed(stage: int) -> Pair:
    return deepspeed_engine(GPT(CONFIG), stage, lr=1e-3), None


def step(pair: Pair, number: int) -> None:
    model, optimizer = pair
    inputs, targets = batches(number, dist.get_rank(), WORLD_SIZE, batch_size=WORLD_SIZE)
    if optimizer is None:
        model.backward(model(inputs, targets)[1])
        return model.step()
    optimizer.zero_grad()
    model(inputs, targets)[1].backward()
    optimizer.step()


def alternate(*makers: Callable[[], Any]) -> list[tuple[float, float]]:
    """On a rank: seconds of a step of each, turn by turn. Two are not timed: torch rebuilds buckets."""
    pairs = []
    for make in makers:
        torch.manual_seed(0)
        pairs.append(make())
    times = []
    for number in range(ROUNDS + 2):
        took = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            dist.barrier()
            started = time.perf_counter()
            step(pairs[side], number)
            took[side] = time.perf_counter() - started
        times.append(tuple(took))
    return times[2:]


class SideBySide:
    """Two ways timed in the same launch: what slows the machine for a moment slows both."""

    def __init__(self, *makers: Callable[[], Any]) -> None:
        self.makers = makers
        self.unread: tuple[list[float], list[float]] = ([], [])

    def seconds(self, side: int) -> float:
        """Median over the rounds of one launch of the time until the last rank is done; 0 is ours, 1 is theirs."""
        if not self.unread[side]:
            ranks = launch(alternate, *self.makers, world_size=WORLD_SIZE, timeout=300)
            for each in (0, 1):
                slowest = [max(rank[turn][each] for rank in ranks) for turn in range(ROUNDS)]
                self.unread[each].append(statistics.median(slowest))
        return self.unread[side].pop()

    def works(self) -> tuple[Work, Work]:
        return lambda: self.seconds(0), lambda: self.seconds(1)


@benchmark(runs=5)
def zero_1_step_10m_4_ranks() -> tuple[Work, Work]:
    """Stage 1 against torch's DistributedDataParallel with ZeroRedundancyOptimizer."""
    return SideBySide(functools.partial(zero, 1), zero_redundancy_optimizer).works()


@benchmark(runs=5)
def zero_2_step_10m_4_ranks() -> tuple[Work, Work]:
    """Stage 2 against torch's DistributedDataParallel with ZeroRedundancyOptimizer."""
    return SideBySide(functools.partial(zero, 2), zero_redundancy_optimizer).works()


@benchmark(runs=5)
def fsdp_step_10m_4_ranks() -> tuple[Work, Work]:
    """Stage 3 against torch's fully_shard, block by block."""
    return SideBySide(fully_sharded, fully_shard_of_torch).works()


@benchmark(runs=3)
def zero_1_step_10m_against_deepspeed() -> tuple[Work, Work]:
    """Stage 1 against DeepSpeed's."""
    return SideBySide(functools.partial(zero, 1), functools.partial(deepspeed, 1)).works()


@benchmark(runs=3)
def zero_2_step_10m_against_deepspeed() -> tuple[Work, Work]:
    """Stage 2 against DeepSpeed's."""
    return SideBySide(functools.partial(zero, 2), functools.partial(deepspeed, 2)).works()


@benchmark(runs=3)
def fsdp_step_10m_against_deepspeed() -> tuple[Work, Work]:
    """Stage 3 against DeepSpeed's."""
    return SideBySide(fully_sharded, functools.partial(deepspeed, 3)).works()
