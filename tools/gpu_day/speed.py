"""Rows of `python -m benchmarks` with their backend named: NCCL where there are four GPUs, otherwise one shared GPU."""

from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from benchmarks import collectives, zero
from benchmarks.ranks import slowest_rank
from course_lib.collectives import halving_doubling_all_reduce, ring_all_reduce
from course_lib.runtime import backends, launch
from tools.gpu_day.steps import Step

DEADLINE_S = 120.0
WORLD_SIZE, ROUNDS = 4, 9
ALL_REDUCES = {"ring": (ring_all_reduce, "1MiB"), "halving_doubling": (halving_doubling_all_reduce, "1MiB"),
               "ring, large": (ring_all_reduce, "64MiB")}


def steps(mode: str) -> list[Step]:
    backend = "nccl" if backends.count_gpus() >= WORLD_SIZE else "gloo-cuda"
    sharded = {"zero_1": (partial(zero.zero, 1), zero.zero_redundancy_optimizer),
               "zero_2": (partial(zero.zero, 2), zero.zero_redundancy_optimizer),
               "fsdp": (zero.fully_sharded, zero.fully_shard_of_torch)}
    return [
        *(Step(f"{name.split(',')[0]}_4_ranks_{size}", f"all-reduce of {size} against torch's, {backend}",
               partial(compare, backend, collectives.alternate, (ours, dist.all_reduce), collectives.SIZES[size],
                       ROUNDS))
          for name, (ours, size) in ALL_REDUCES.items()),
        *(Step(f"{name}_step_10m_4_ranks", f"a GPT's step against torch's, {backend}",
               partial(compare, backend, zero.alternate, *makers)) for name, makers in sharded.items()),
    ]


def compare(backend: str, work: Callable, *arguments: object) -> str:
    ours_s, theirs_s = slowest_rank(launch(work, *arguments, world_size=WORLD_SIZE, backend=backend, timeout=100))
    return f"ours {1e3 * ours_s:.2f} ms, theirs {1e3 * theirs_s:.2f} ms, ratio {ours_s / theirs_s:.2f}"
