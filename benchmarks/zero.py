"""A training step of a GPT of 10 million parameters on 4 ranks, sharded: ours, torch's own, DeepSpeed's.

`python -m benchmarks.zero` prints time and memory of all of them, measured in one run.
"""

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.harness import Both, Goal, benchmark
from benchmarks.ranks import Times, alternate, make_sides, over_ranks, side_by_side
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_memory
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from course_lib.zero.deepspeed import deepspeed_engine

WORLD_SIZE, ROUNDS = 4, 5
# 10.1 million parameters, 41 MB of gradients. A row of 64 tokens a rank: the most communication for the least work.
CONFIG = GPTConfig(num_layers=5, hidden_size=408, num_heads=4, vocab_size=256, sequence_length=64)
Step = Callable[[int], None]


def zero(stage: int) -> Step:
    model = GPT(CONFIG)
    return training(model, ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=stage))


def zero_redundancy_optimizer() -> Step:
    model = DistributedDataParallel(GPT(CONFIG))
    return training(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))


def fully_sharded() -> Step:
    model = FullyShardedDataParallel(GPT(CONFIG))
    return training(model, torch.optim.AdamW(model.parameters()))


def fully_shard_of_torch() -> Step:
    model = GPT(CONFIG)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return training(model, torch.optim.AdamW(model.parameters()))


def deepspeed(stage: int) -> Step:
    return training(deepspeed_engine(GPT(CONFIG), stage, lr=1e-3), None)


def training(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Step:
    """optimizer None: a DeepSpeedEngine is both."""
    return functools.partial(step, model, optimizer)


def step(model: nn.Module, optimizer: torch.optim.Optimizer | None, number: int) -> None:
    inputs, targets = batches(number, dist.get_rank(), WORLD_SIZE, batch_size=WORLD_SIZE)
    if optimizer is None:
        model.backward(model(inputs, targets)[1])
        return model.step()
    optimizer.zero_grad()
    model(inputs, targets)[1].backward()
    optimizer.step()


def peak_of_a_step(make: Callable[[], Step]) -> int:
    """Bytes at most, everything included that was allocated since there was no model."""
    with record_memory() as log:
        [step] = make_sides(make)
        step(0)
        before = len(log.over_time())
        step(1)
        return max(log.over_time()[before:])


def time_and_memory(*makers: Callable[[], Step]) -> tuple[Times, list[int]]:
    """On a rank: the times, and the most bytes that each held in a step."""
    return alternate(ROUNDS, *makers), [peak_of_a_step(make) for make in makers]


@benchmark(runs=3, goal=Goal(0.75))
def zero_1_step_10m_4_ranks() -> Both:
    """ZeRO-1 against torch's DistributedDataParallel with ZeroRedundancyOptimizer."""
    return side_by_side(functools.partial(zero, 1), zero_redundancy_optimizer)


@benchmark(runs=3, goal=Goal(0.75))
def zero_2_step_10m_4_ranks() -> Both:
    """ZeRO-2 against torch's DistributedDataParallel with ZeroRedundancyOptimizer."""
    return side_by_side(functools.partial(zero, 2), zero_redundancy_optimizer)


@benchmark(runs=3, goal=Goal(0.75))
def fsdp_step_10m_4_ranks() -> Both:
    """ZeRO-3 against torch's fully_shard, block by block."""
    return side_by_side(fully_sharded, fully_shard_of_torch)


@benchmark(runs=3)
def zero_1_step_10m_against_deepspeed() -> Both:
    """ZeRO-1 against DeepSpeed's."""
    return side_by_side(functools.partial(zero, 1), functools.partial(deepspeed, 1))


@benchmark(runs=3)
def zero_2_step_10m_against_deepspeed() -> Both:
    """ZeRO-2 against DeepSpeed's."""
    return side_by_side(functools.partial(zero, 2), functools.partial(deepspeed, 2))


@benchmark(runs=3)
def fsdp_step_10m_against_deepspeed() -> Both:
    """ZeRO-3 against DeepSpeed's."""
    return side_by_side(fully_sharded, functools.partial(deepspeed, 3))


def main() -> None:
    ways = {
        "stage 1, ours": functools.partial(zero, 1), "stage 2, ours": functools.partial(zero, 2),
        "stage 3, ours": fully_sharded,
        "DDP + ZeroRedundancyOptimizer": zero_redundancy_optimizer, "fully_shard": fully_shard_of_torch,
        **{f"stage {stage}, DeepSpeed": functools.partial(deepspeed, stage) for stage in (1, 2, 3)},
    }
    ranks = launch(time_and_memory, *ways.values(), world_size=WORLD_SIZE, timeout=600)
    print(f"{'':32}{'ms a step':>10}{'CPU ms':>10}{'peak MB':>10}")
    seconds = over_ranks([times for times, _ in ranks])
    for side, name in enumerate(ways):
        peak = max(peaks[side] for _, peaks in ranks)
        print(f"{name:32}{1e3 * seconds[side].clock:10.0f}{1e3 * seconds[side].cpu:10.0f}{peak / 1e6:10.1f}")


if __name__ == "__main__":
    main()
