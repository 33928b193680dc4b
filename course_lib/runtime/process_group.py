"""Joining the default process group, the same way in ranks of `launch` and under torchrun.

What a cell makes without naming a device lies on the rank's own device: torch's default device, without its traps.

    torch.randperm(8, generator=torch.Generator())    the numbers of that generator, on the CPU, and then brought over

torch itself would draw on the default device and refuse: a generator of the CPU draws nothing on a GPU. DataLoader's
and DistributedSampler's own shuffles are such calls, and so is whatever a reader wants to be the same on every machine.

And a process that a rank forks, as DataLoader its workers, has no default device: a GPU's driver does not survive a
fork, and the first number that a worker put into a tensor would end it.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime import context, staging
from course_lib.runtime.context import RankContext
from course_lib.runtime.instruments import pending
from course_lib.runtime.torch_private import DeviceContext

DRAWN = {torch.rand, torch.randn, torch.randint, torch.randperm}


class _Own(DeviceContext):
    """torch's own context, which every call that makes a tensor goes through, and torch.get_default_device() finds."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if func not in DRAWN or generator is None or any(kwargs.get(name) is not None for name in ("device", "out")):
            return super().__torch_function__(func, types, args, kwargs)
        drawn = func(*args, **{**kwargs, "device": generator.device})
        return drawn.detach().to(self.device).requires_grad_(drawn.requires_grad)


_own: _Own | None = None


def set_default_device(device: torch.device) -> None:
    """From now on, in the calling thread: what is made without naming a device lies on `device`."""
    global _own
    unset_default_device()
    _own = _Own(device)
    _own.__enter__()


def unset_default_device() -> None:
    """From now on tensors are made on the CPU again."""
    global _own
    if _own is not None:
        _own.__exit__(None, None, None)
        _own = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=unset_default_device)


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
        set_default_device(device)
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
    unset_default_device()
    context.current = None


def group_timeout(timeout_s: float) -> timedelta:
    """Later than launch's own time limit, whose message says more than the backend's.

    A day at least: at a breakpoint one rank waits for the reader, and the others for that rank.
    """
    return timedelta(seconds=min(2 * timeout_s + 24 * 3600, 7 * 24 * 3600))
