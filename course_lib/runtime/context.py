"""Who am I: whether the calling process is a rank, which one, and the device that is its own."""

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

RANK_MARK = "COURSE_LIB_RANK"  # set in the environment of every rank and of whatever a rank starts


@dataclass(frozen=True)
class RankContext:
    """What `launch` decided for this rank."""

    rank: int
    world_size: int
    backend: str  # nccl, gloo or gloo-cuda


current: RankContext | None = None  # None outside ranks


def in_rank() -> bool:
    """Whether this process is a rank of `launch`, or was started by one."""
    return RANK_MARK in os.environ


def under_torchrun() -> bool:
    """Whether torchrun (or a scheduler that sets the same variables) has described a group for this process."""
    return not in_rank() and all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def ipython_shell() -> Any:
    """What runs IPython's cells in this process, of a notebook or typed in a terminal; None where nothing does."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it; whoever has not is none
    return None if ipython is None else ipython.get_ipython()


def in_jupyter_kernel() -> bool:
    """Whether this process runs a notebook's cells, and so will probably launch ranks soon."""
    return hasattr(ipython_shell(), "kernel")


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_ranks_here() -> int:
    """The ranks on this host, this one among them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def device() -> "torch.device":
    """The device of the calling rank, a torch.device.

    With NCCL each rank of a host has a GPU of its own, with gloo-cuda all share the first one, with gloo (and outside
    ranks) it is the CPU. What a rank allocates without naming a device lies there.
    """
    import torch  # here, so that the pool of ranks can be started before this process imports torch

    if current is None or current.backend == "gloo":
        return torch.device("cpu")
    index = 0 if current.backend == "gloo-cuda" else int(os.environ.get("LOCAL_RANK", 0))
    return torch.device(torch.accelerator.current_accelerator().type, index)
