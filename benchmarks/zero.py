"""A training step of a GPT of 10 million parameters on 4 ranks, sharded: ours, torch's own, DeepSpeed's.

`python -m benchmarks.zero` prints time and memory of all of them, measured in one run.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Work, benchmark
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_memory
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


def made(makers: Sequence[Callable[[], Pair]]) -> list[Pair]:
    pairs = []
    for make in makers:
        torch.manual_seed(0)
        pairs.append(make())
    return pairs


def timed(pairs: Sequence[Pair]) -> list[list[float]]:
    """Seconds of a step of each, turn by turn. Two turns are not kept: torch rebuilds buckets."""
    times = []
    for number in range(ROUNDS + 2):
        took, first = [0.0] * len(pairs), number % len(pairs)
        for side in (*range(first, len(pairs)), *range(first)):
            dist.barrier()
            started = time.perf_counter()
            step(pairs[side], number)
            took[side] = time.perf_counter() - started
        times.append(took)
    return times[2:]


def alternate(*makers: Callable[[], Pair]) -> list[list[float]]:
    """On a rank."""
    return timed(made(makers))


def peak_of_a_step(make: Callable[[], Pair]) -> int:
    """Bytes at most, everything included that was allocated since there was no model."""
    with record_memory() as log:
        pair = made([make])[0]
        step(pair, 0)
        before = len(log.over_time())
        step(pair, 1)
        return max(log.over_time()[before:])


def time_and_memory(*makers: Callable[[], Pair]) -> tuple[list[list[float]], list[int]]:
    """On a rank: the times, and the most bytes that each held in a step."""
    return timed(made(makers)), [peak_of_a_step(make) for make in makers]


def median_of_slowest(ranks: Sequence[list[list[float]]], side: int) -> float:
    """Over the turns, of the time until the last rank was done."""
    return statistics.median(max(rank[turn][side] for rank in ranks) for turn in range(len(ranks[0])))


class SideBySide:
    """Two ways timed in the same launch: what slows the machine for a moment slows both."""

    def __init__(self, *makers: Callable[[], Pair]) -> None:
        self.makers = makers
        self.unread: tuple[list[float], list[float]] = ([], [])

    def seconds(self, side: int) -> float:
        """Of one launch; 0 is ours, 1 is theirs."""
        if not self.unread[side]:
            ranks = launch(alternate, *self.makers, world_size=WORLD_SIZE, timeout=300)
            for each in (0, 1):
                self.unread[each].append(median_of_slowest(ranks, each))
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


def main() -> None:
    ways = {
        "stage 1, ours": functools.partial(zero, 1), "stage 2, ours": functools.partial(zero, 2),
        "stage 3, ours": fully_sharded,
        "DDP + ZeroRedundancyOptimizer": zero_redundancy_optimizer, "fully_shard": fully_shard_of_torch,
        **{f"stage {stage}, DeepSpeed": functools.partial(deepspeed, stage) for stage in (1, 2, 3)},
    }
    ranks = launch(time_and_memory, *ways.values(), world_size=WORLD_SIZE, timeout=600)
    print(f"{'':32}{'ms a step':>10}{'peak MB':>10}")
    for side, name in enumerate(ways):
        milliseconds = 1e3 * median_of_slowest([times for times, _ in ranks], side)
        print(f"{name:32}{milliseconds:10.0f}{max(peaks[side] for _, peaks in ranks) / 1e6:10.1f}")


if __name__ == "__main__":
    main()
