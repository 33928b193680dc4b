"""Joining the default process group, the same way in ranks of `launch` and under torchrun."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime import context, staging
from course_lib.runtime.context import RankContext
from course_lib.runtime.instruments import pending


def join(place: RankContext, timeout_s: float, **rendezvous: Any) -> None:
    """Become the rank at `place`: its device the default one, its calls observed, its group initialised.

    With NCCL the group has gloo for tensors in the host's memory. It is given the rank's GPU, so that its communicator
    is made now and not in the middle of the first collective. `rendezvous` goes to init_process_group.
    """
    context.current = place
    device = context.device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
        # A cell that makes tensors then runs on GPUs as it stands. On the CPU nothing is set: 1 us an operator.
        torch.set_default_device(device)
    if place.backend == "gloo-cuda":
        staging.install()
    pending.install()
    over_nccl = place.backend == "nccl"
    dist.init_process_group(f"cpu:gloo,{device.type}:nccl" if over_nccl else "gloo",
                            timeout=group_timeout(timeout_s), device_id=device if over_nccl else None, **rendezvous)


def leave() -> None:
    """Undo `join`, for a process that lives on."""
    if dist.is_initialized():
        dist.destroy_process_group()
    staging.uninstall()
    if context.device().type != "cpu":
        torch.set_default_device(None)
    context.current = None


def group_timeout(timeout_s: float) -> timedelta:
    """Later than launch's own time limit, whose message says more than the backend's.

    A day at least: at a breakpoint one rank waits for the reader, and the others for that rank.
    """
    return timedelta(seconds=min(2 * timeout_s + 24 * 3600, 7 * 24 * 3600))
