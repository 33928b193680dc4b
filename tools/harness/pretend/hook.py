"""Ranks of `launch` and `start_ranks` on pretended GPUs, with nothing in course_lib that knows of it.

A rank is told what to do by a `Task`, which it receives before anything else. Under `pretended(mode)` the task that is
sent unpickles through `arrive`, and that gives the rank its device.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from course_lib.runtime import backends, launcher
from course_lib.runtime.ranks.messages import Task
from course_lib.runtime.team import staying
from tools.harness.pretend.modes import Mode

_has_device = False  # in the rank


@contextlib.contextmanager
def pretended(mode: Mode) -> Iterator[None]:
    """Inside, `launch` finds the machine of `mode`. The calling process itself gets no device."""
    chosen = backends.choose

    class PretendedTask(Task):
        def __reduce__(self) -> Any:
            return arrive, (mode, dict(vars(self)))

    def choose(backend: str, device: str, ranks_here: int) -> str:
        backend = mode.auto if (backend, device) == ("auto", "auto") and mode.auto else backend
        return chosen(backend, device, ranks_here)

    if mode.num_gpus == 0:
        with mock.patch.object(backends, "choose", choose):
            yield
        return
    with (mock.patch.object(launcher, "Task", PretendedTask), mock.patch.object(staying, "Task", PretendedTask),
          mock.patch.object(backends, "choose", choose),
          mock.patch.object(backends, "count_gpus", lambda: mode.num_gpus),
          mock.patch.object(torch.distributed.distributed_c10d, "_NCCL_AVAILABLE", True)):
        yield


def arrive(mode: Mode, told: dict[str, Any]) -> Task:
    """In the rank: the task, after its device is there. A rank from which GPUs are hidden gets none, as with CUDA."""
    global _has_device
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "" and not _has_device:  # a rank that stays is told more than once
        from tools.harness.pretend import device

        device.install(mode, 0 if told["backend"] == "gloo-cuda" else told["rank"])
        _has_device = True
    return Task(**told)
