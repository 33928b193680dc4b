"""`seconds(function, ...)`: what one call takes, the work it hands to a GPU included."""

import time
from collections.abc import Callable
from typing import Any

import torch

from course_lib.runtime import context


def seconds(function: Callable, *args: Any, **kwargs: Any) -> float:
    """Seconds that `function(*args, **kwargs)` takes here.

    Most calls on a GPU return at once, while it works on: so this waits for all that the calling rank's GPU was given
    before the call, and again for what the call gave it. On the CPU there is nothing to wait for. Of communication it
    is this rank's time, waiting for the other ranks included.
    """
    _wait_for_the_device()
    started = time.perf_counter()
    function(*args, **kwargs)
    _wait_for_the_device()
    return time.perf_counter() - started


def _wait_for_the_device() -> None:
    device = context.device()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
