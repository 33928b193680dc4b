"""`seconds(function, ...)`: what one call takes, the work it hands to a GPU included.

`sleep(seconds)`: a pause of this rank's device, where time.sleep is one of the host alone.
"""

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


def sleep(seconds: float) -> None:
    """Do nothing for so many seconds, once all is done that this thread has given to its rank's device.

    Calls on a GPU return before they are done: time.sleep would pass while the GPU still computes, or waits for a
    message, and cost nothing.
    """
    catch_up()
    time.sleep(seconds)


def catch_up() -> None:
    """Wait until the rank's device has done what this thread has given it so far; a CPU always has.

    For the current stream alone: messages that were asked for ahead of time may need what this rank does next.
    """
    device = context.device()
    if device.type != "cpu":
        torch.accelerator.current_stream(device).synchronize()
