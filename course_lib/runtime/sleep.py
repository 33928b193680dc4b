"""`sleep(seconds)`: a pause of this rank's device, where time.sleep is one of the host alone."""

import time

import torch

from course_lib.runtime import context


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
