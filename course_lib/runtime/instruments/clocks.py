"""When something happens: by the host's counter, or, on a GPU, by events on its streams.

A GPU works behind the host: a call that computes or communicates returns at once. So a mark there is an event on the
current stream, which happens when the stream has come so far, and is read when the recording is over. Both clocks read
their marks as seconds of the host's counter (time.perf_counter), which all ranks of a host share.

`seconds(function, ...)` is what one call takes, the work it hands to a GPU included; `sleep(seconds)` a pause of this
rank's device, where time.sleep is one of the host alone.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
"""

import time
from collections.abc import Callable, Hashable
from typing import Any

import torch

from course_lib.runtime import context

Mark = float | torch.Event
Read = Callable[[Mark, bool], float | None]  # (mark, whether to wait for it) -> seconds, None where not there yet

MOST_STREAMS = 24  # torch has 32 of a priority, and then hands out the first ones again
REFERENCES = 3


class HostClock:
    """What has happened when the call returns: everything on the CPU. Its marks are seconds already."""

    def mark(self, on_stream: bool = True) -> Mark:
        return time.perf_counter()

    def reader(self) -> Read:
        return lambda mark, wait: mark


class DeviceClock:
    """Events on the streams of `device`; the host's counter where a mark is not `on_stream`: gloo's calls."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self, on_stream: bool = True) -> Mark:
        """Now on the stream, as an event that need not have happened yet; in seconds where it is not on the stream."""
        if not on_stream:
            return time.perf_counter()
        event = torch.Event(self.device, enable_timing=True)
        # The calling thread's stream, by the device: a thread that has chosen no device is on another rank's.
        event.record(torch.accelerator.current_stream(self.device))
        return event

    def reader(self) -> Read:
        """read(mark, wait): its time in the host's seconds; without `wait`, None where the event has not happened yet.
        """
        reference, reference_s = self._reference()

        def read(mark: Mark, wait: bool) -> float | None:
            if isinstance(mark, float):
                return mark
            if wait:
                mark.synchronize()
            elif not mark.query():
                return None
            return reference_s - mark.elapsed_time(reference) / 1e3  # ms

        return read

    def _reference(self) -> tuple[torch.Event, float]:
        """An event and the host's time of it, which is known to half of what the narrowest of some tries took."""
        stream = side_stream(self.device, "reference")
        tries = []
        for _ in range(REFERENCES):
            event = torch.Event(self.device, enable_timing=True)
            before = time.perf_counter()
            event.record(stream)
            event.synchronize()
            after = time.perf_counter()
            tries.append((after - before, event, (before + after) / 2))
        _, event, at_s = min(tries, key=lambda attempt: attempt[0])
        return event, at_s


def this_clock() -> HostClock | DeviceClock:
    """The clock for the device of the calling rank."""
    device = context.device()
    return HostClock() if device.type == "cpu" else DeviceClock(device)


_streams: dict[Hashable, torch.Stream] = {}


def side_stream(device: torch.device, purpose: Hashable) -> torch.Stream:
    """A stream on which nothing computes, the same one for the same purpose.

    Of high priority: those come from a pool of their own, so that the reader's streams are others.
    """
    key = device, purpose
    if key not in _streams:
        made = list(_streams.values())
        _streams[key] = (torch.Stream(device, priority=-1) if len(made) < MOST_STREAMS
                         else made[len(made) % MOST_STREAMS])
    return _streams[key]


def seconds(function: Callable, *args: Any, **kwargs: Any) -> float:
    """Seconds that `function(*args, **kwargs)` takes here.

    Most calls on a GPU return at once, while it works on: so this waits for all that the calling rank's GPU was given
    before the call, and again for what the call gave it. On the CPU there is nothing to wait for. Of communication it
    is this rank's time, waiting for the other ranks included.
    """
    device = context.device()

    def now() -> float:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    started = now()
    function(*args, **kwargs)
    return now() - started


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
