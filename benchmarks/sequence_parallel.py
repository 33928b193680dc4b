"""Recomputation against torch.utils.checkpoint, and ring attention with zigzag against itself with contiguous shards.

`python -m benchmarks.sequence_parallel` prints how long the busiest rank and the idlest one compute under each layout.
"""

import functools
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.harness import Both, Goal, Seconds, benchmark, cpu_seconds
from benchmarks.ranks import Times, over_ranks, seconds_together, side_by_side, time_turns
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import device, launch
from course_lib.sequence_parallel import LAYOUTS, recompute, ring_attention

ROUNDS = 7
CONFIG = GPTConfig(num_layers=4, hidden_size=256, num_heads=4, vocab_size=256, sequence_length=128, dropout=0.1)
ROWS = 4
WORLD_SIZE, TOKENS, HEADS, HEAD_DIM = 8, 8192, 1, 64  # 1024 tokens on each rank


def checkpointed(function: Callable) -> Callable:
    return functools.partial(checkpoint, function, use_reentrant=False)


def selectively_checkpointed(model: GPT) -> None:
    for block in model.blocks:
        block.attention.attend = checkpointed(block.attention.attend)


def checkpoint_blocks(model: GPT) -> None:
    for block in model.blocks:
        block.forward = checkpointed(block.forward)


def recompute_blocks(model: GPT, policy: str) -> None:
    for block in model.blocks:
        block.forward = recompute(block.forward, policy)


def step(model: GPT, number: int) -> None:
    model.zero_grad()
    model(*batches(number, 0, 1, batch_size=ROWS, sequence_length=CONFIG.sequence_length))[1].backward()


def changed(change: Callable[[GPT], None]) -> Callable[[int], None]:
    model = GPT(CONFIG)
    change(model)
    return functools.partial(step, model)


def in_one_rank(*changes: Callable[[GPT], None]) -> Both:
    return side_by_side(*(functools.partial(changed, change) for change in changes), rounds=ROUNDS, world_size=1)


@benchmark(runs=3, goal=Goal(1.0))
def recompute_full() -> Both:
    """A training step of a GPT whose blocks are recomputed, against torch.utils.checkpoint's, dropout on."""
    return in_one_rank(functools.partial(recompute_blocks, policy="full"), checkpoint_blocks)


@benchmark(runs=3, goal=Goal(1.0))
def recompute_selective() -> Both:
    """A training step of a GPT whose attention cores alone are recomputed, against torch.utils.checkpoint's."""
    return in_one_rank(functools.partial(recompute_blocks, policy="selective"), selectively_checkpointed)


def shards() -> list[Tensor]:
    """q, k, v of this rank: what they hold decides nothing here."""
    shape = (1, HEADS, TOKENS // dist.get_world_size(), HEAD_DIM)
    return [torch.randn(shape, device=device(), requires_grad=True) for _ in range(3)]


def attend(qkv: list[Tensor], layout: str) -> None:
    ring_attention(*qkv, layout=layout).sum().backward()


def has_a_core_each() -> bool:
    """Whether every rank computes on a device of its own, so that a clock on the wall shows what it would on GPUs."""
    return device().type != "cpu" or (os.cpu_count() or 1) >= dist.get_world_size()


def busy_seconds(work: Callable[[], object]) -> Seconds:
    """Until this rank is done; where ranks share cores, what it computed without what it waited for.

    The slowest rank's is what a step lasts on ranks that have a device each: under contiguous shards the last rank
    always has something to compute, and the others wait for it.
    """
    if has_a_core_each():
        return seconds_together(work)
    dist.barrier()
    started, cpu_before = time.thread_time(), cpu_seconds()
    work()
    return Seconds(time.thread_time() - started, cpu_seconds() - cpu_before)


def attention_steps(*layouts: str, rounds: int = ROUNDS) -> Times:
    """On a rank: seconds of ring attention, forward and backward, under each layout, turn by turn, and their medians.

    Before they are compared: what disturbs one rank in one round would count every time, all ranks doing the same.
    """
    qkv = shards()
    times = time_turns([lambda _, layout=layout: attend(qkv, layout) for layout in layouts], rounds, 1, busy_seconds)
    return [[Seconds(*map(statistics.median, zip(*side))) for side in zip(*times)]]


@benchmark(runs=3)
def ring_attention_zigzag_over_contiguous() -> Both:
    """Causal ring attention on 8 ranks, forward and backward: zigzag against contiguous shards, both ours."""
    return lambda: over_ranks(launch(attention_steps, "zigzag", "contiguous", world_size=WORLD_SIZE, timeout=300))


def main() -> None:
    print(f"{'':8}{'layout':<12}{'busiest rank':>14}{'idlest rank':>14}")
    for world_size in (2, 4, WORLD_SIZE):
        of_ranks = launch(attention_steps, *LAYOUTS, rounds=5, world_size=world_size, timeout=300)
        for layout, took in zip(LAYOUTS, zip(*(times for times, in of_ranks))):
            print(f"R = {world_size:<4}{layout:<12}{1e3 * max(took).clock:>11.0f} ms{1e3 * min(took).clock:>11.0f} ms")


if __name__ == "__main__":
    main()
