"""What a cell makes without naming a device lies on the rank's own device: torch's default device, without its traps.

    torch.randperm(8, generator=torch.Generator())    the numbers of that generator, on the CPU, and then brought over

torch itself would draw on the default device and refuse: a generator of the CPU draws nothing on a GPU. DataLoader's
and DistributedSampler's own shuffles are such calls, and so is whatever a reader wants to be the same on every machine.

And a process that a rank forks, as DataLoader its workers, has no default device: a GPU's driver does not survive a
fork, and the first number that a worker put into a tensor would end it.
"""

import os
from collections.abc import Callable
from typing import Any

import torch

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
