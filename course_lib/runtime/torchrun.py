"""The same `launch` under torchrun: the processes exist already, so join their group and run."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, see _join

from course_lib.runtime import backends, context
from course_lib.runtime.instruments import pending, recordings
from course_lib.runtime.ranks.rank import group_timeout, seed_everything
from course_lib.runtime.results import Results


def launch_under_torchrun(
    fn: Callable[..., Any], args: tuple, kwargs: dict, world_size: int, backend: str, timeout_s: float, seed: int
) -> Results:
    """Run fn here, as the rank that torchrun made of this process, and return every rank's result on every rank.

    Exceptions go up as they are: torchrun reports them and stops the other ranks.
    """
    if not dist.is_initialized():
        _join(backend, timeout_s)
    if dist.get_rank() == 0 and world_size != dist.get_world_size():
        print(f"launch: world_size={world_size} was asked for, but torchrun started {dist.get_world_size()} ranks: "
              f"using {dist.get_world_size()}", file=sys.stderr)
    seed_everything(seed)
    recordings.take()  # whatever was recorded outside launch is not this launch's
    result = fn(*args, **kwargs)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (result, recordings.take()))
    return Results([result for result, _ in everyone], [logs for _, logs in everyone])


def _join(backend: str, timeout_s: float) -> None:
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    backend = backends.choose(backend, ranks_here)
    context.current = context.RankContext(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), backend)
    device = context.device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    pending.install()
    # torch.distributed.nn.functional keeps the group that it finds when it is imported (as a default argument), and any
    # optimiser imports it. Then destroying the group at the end would not end gloo's threads, and one that is late in
    # freeing a tensor asks a Python that is no more: "terminate called without an active exception".
    dist.init_process_group(
        "nccl" if backend == "nccl" else "gloo",
        timeout=group_timeout(timeout_s),
        device_id=device if backend == "nccl" else None,
    )
    atexit.register(dist.destroy_process_group)
