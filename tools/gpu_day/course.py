"""Notebooks as they stand, with the cells that do not come out as stored; then rows of `python -m benchmarks`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist

from benchmarks import collectives, zero
from benchmarks.ranks import slowest_rank
from course_lib.collectives import halving_doubling_all_reduce, ring_all_reduce
from course_lib.runtime import backends, launch
from tools import cells
from tools.gpu_day.steps import ON, Step, require

LIMIT_S = 180.0  # a notebook, in which a cell has 120 s; a row of benchmarks
NOTEBOOKS = ("00", "06")
WORLD_SIZE, ROUNDS = 4, 9
ALL_REDUCES = {"ring": (ring_all_reduce, "1MiB"), "halving_doubling": (halving_doubling_all_reduce, "1MiB"),
               "ring, large": (ring_all_reduce, "64MiB")}
SHARDED = {"zero_1": (partial(zero.zero, 1), zero.zero_redundancy_optimizer),
           "zero_2": (partial(zero.zero, 2), zero.zero_redundancy_optimizer),
           "fsdp": (zero.fully_sharded, zero.fully_shard_of_torch)}


def steps(mode: str) -> list[Step]:
    backend = "nccl" if backends.count_gpus() >= WORLD_SIZE else "gloo-cuda"  # four GPUs, otherwise one shared one
    return [
        *(Step(f"notebook {path.name[:2]}", f"{path.name}, cells that launch", partial(lesson, mode, path), LIMIT_S)
          for path in cells.NOTEBOOKS if path.name.startswith(NOTEBOOKS)),
        *(Step(f"{name.split(',')[0]}_4_ranks_{size}", f"all-reduce of {size} against torch's, {backend}",
               partial(compare, backend, collectives.alternate, (ours, dist.all_reduce), collectives.SIZES[size],
                       ROUNDS), LIMIT_S)
          for name, (ours, size) in ALL_REDUCES.items()),
        *(Step(f"{name}_step_10m_4_ranks", f"a GPT's step against torch's, {backend}",
               partial(compare, backend, zero.alternate, *makers), LIMIT_S) for name, makers in SHARDED.items()),
    ]


def lesson(mode: str, path: Path) -> str:
    """The cells of a notebook that launch, on whatever ranks this machine gives them."""
    outcomes = cells.lessons(ON[mode], path)
    bad = [f"{each.what} {each.error[:80]}" for each in outcomes if not each.passed]
    others = [each.what for each in outcomes if each.other_output]
    figure = f"{len(outcomes) - len(bad)} of {len(outcomes)} cells" + "".join(f"; {each}" for each in bad)
    return require(not bad, figure + (f"; other text in {', '.join(others)}" if others else ""))


def compare(backend: str, work: Callable, *arguments: object) -> str:
    ours_s, theirs_s = slowest_rank(launch(work, *arguments, world_size=WORLD_SIZE, backend=backend, timeout=100))
    return f"ours {1e3 * ours_s:.2f} ms, theirs {1e3 * theirs_s:.2f} ms, ratio {ours_s / theirs_s:.2f}"
