"""The same `launch` under torchrun: the processes exist already, so join their group and run."""

import atexit
import gc
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  before there is a group, see _join

from course_lib.runtime import backends, context, process_group
from course_lib.runtime.instruments import recordings
from course_lib.runtime.ranks.parcels import pack_call, pack_result, unpack_call
from course_lib.runtime.ranks.rank import seed_everything
from course_lib.runtime.results import Results


def launch_under_torchrun(fn: Callable[..., Any], args: tuple, kwargs: dict, world_size: int, backend: str, device: str,
                          timeout_s: float, seed: int | None) -> Results:
    """Run fn here, as the rank that torchrun made of this process, and return every rank's result on every rank.

    Exceptions go up as they are: torchrun reports them and stops the other ranks.
    """
    if not dist.is_initialized():
        _join(backend, device, timeout_s)
    if dist.get_rank() == 0 and world_size != dist.get_world_size():
        print(f"launch: world_size={world_size} was asked for, but torchrun started {dist.get_world_size()} ranks: "
              f"using {dist.get_world_size()}", file=sys.stderr)
    if context.device().type != "cpu":
        fn, args, kwargs = unpack_call(pack_call(fn, args, kwargs))  # its tensors arrive on this rank's GPU
    if seed is not None:  # a team's later calls go on with the numbers of the ones before
        seed_everything(seed)
    recordings.take()  # whatever was recorded outside launch is not this launch's
    result = fn(*args, **kwargs)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, pack_result((result, recordings.take())))
    returned = [pickle.loads(each) for each in everyone]
    return Results([result for result, _ in returned], [logs for _, logs in returned])


def _join(backend: str, device: str, timeout_s: float) -> None:
    backend = backends.choose(backend, device, int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])))
    if backend == "gloo":
        os.environ.update(backends.NO_GPUS)
    # torch.distributed.nn.functional keeps the group that it finds when it is imported (as a default argument), and any
    # optimiser imports it. Then destroying the group at the end would not end gloo's threads, and one that is late in
    # freeing a tensor asks a Python that is no more: "terminate called without an active exception".
    rank = context.RankContext(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), backend)
    process_group.join(rank, timeout_s, **_rendezvous(timeout_s))
    atexit.register(_leave)


def _leave() -> None:
    gc.collect()  # what holds the group and waits to be collected would keep gloo's threads, too
    dist.destroy_process_group()


def _rendezvous(timeout_s: float) -> dict[str, Any]:
    """Where the ranks find each other's addresses: torchrun's own store, a part of it for each time that it has started
    them. With --max-restarts the addresses of those that died still stand there, and a new group would call them.
    """
    store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=process_group.group_timeout(timeout_s))))
    store.set_timeout(process_group.group_timeout(timeout_s))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": dist.PrefixStore(f"attempt {attempt}", store), "rank": rank, "world_size": world_size}
