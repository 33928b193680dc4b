"""Ranks of `launch` on pretended GPUs, with nothing in course_lib that knows of it.

A rank is told what to do by a `Task`, which it receives before anything else. Under `pretended(mode)` the task that is
sent unpickles through `arrive`, and that gives the rank its device.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from course_lib.runtime import context, launcher
from course_lib.runtime.ranks.messages import Task
from course_lib.runtime.ranks.rank import ResultPickler, _as_is
from tests.pretend.modes import Mode


@contextlib.contextmanager
def pretended(mode: Mode) -> Iterator[None]:
    """Inside, `launch` finds the machine of `mode`. The calling process itself gets no device."""
    if mode.num_gpus == 0:
        yield
        return
    chosen = launcher.backends.choose

    class PretendedTask(Task):
        def __reduce__(self) -> Any:
            return arrive, (mode, dict(vars(self)))

    def choose(backend: str, ranks_here: int, *others: Any, **named: Any) -> str:
        backend = mode.auto if backend == "auto" and mode.auto else backend
        if backend == "nccl" and mode.nccl_takes_cpu:  # ranks may share a GPU there
            return backend
        return chosen(backend, ranks_here, *others, **named)

    with (mock.patch.object(launcher, "Task", PretendedTask),
          mock.patch.object(launcher.backends, "choose", choose),
          mock.patch.object(torch.cuda, "device_count", lambda: mode.num_gpus),
          mock.patch.object(torch.accelerator, "device_count", lambda: mode.num_gpus),
          mock.patch.object(torch.distributed.distributed_c10d, "_NCCL_AVAILABLE", True)):
        yield


def arrive(mode: Mode, told: dict[str, Any]) -> Task:
    """In the rank: the task, after its device is there. A rank from which GPUs are hidden gets none, as with CUDA."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        from tests.pretend import device

        device.install(mode, 0 if told["backend"] == "gloo-cuda" else told["rank"])
        stand_in_for_cuda(device.NAME)
    return Task(**told)


def stand_in_for_cuda(name: str) -> None:
    """Where course_lib says "cuda", it gets the pretended device. To go when it asks torch.accelerator instead."""
    asked, make_tensor = context.device, torch.tensor
    if asked.__module__ == __name__:  # a rank that is kept warm
        return

    def device() -> torch.device:
        real = asked()
        return torch.device(name, torch.accelerator.current_device_index()) if real.type == "cuda" else real

    def tensor(*values: Any, device: Any = None, **options: Any) -> torch.Tensor:
        return make_tensor(*values, device=name if device == "cuda" else device, **options)

    import course_lib.runtime

    reduce = ResultPickler.reducer_override

    def reducer_override(self: ResultPickler, value: Any) -> Any:
        on_gpu = isinstance(value, torch.Tensor) and value.device.type == name
        return (_as_is, (value.detach().cpu(),)) if on_gpu else reduce(self, value)

    context.device = course_lib.runtime.device = device
    torch.tensor = tensor
    ResultPickler.reducer_override = reducer_override
