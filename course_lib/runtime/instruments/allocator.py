"""What the allocator of a rank's GPU says of itself, beside what is counted by storage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from course_lib.runtime import context

_open: list["_Peak"] = []


class _Peak:
    num_bytes = 0


@contextmanager
def allocator_peak(tell: Callable[[int], None]) -> Iterator[None]:
    """`tell` the most bytes that the GPU's allocator had given out at one time inside the block; nothing on the CPU.

    The allocator keeps one peak a process, which starts anew with each block: those around it note theirs first.
    """
    statistics = _statistics()
    if statistics is None:
        yield
        return
    _note(statistics)
    statistics.reset_peak_memory_stats(context.device())
    mine = _Peak()
    _open.append(mine)
    try:
        yield
    finally:
        _note(statistics)
        _open.remove(mine)
        tell(mine.num_bytes)


def _note(statistics: ModuleType) -> None:
    for peak in _open:
        peak.num_bytes = max(peak.num_bytes, statistics.max_memory_allocated(context.device()))


def _statistics() -> ModuleType | None:
    """torch.cuda, or its like for another kind of device; None on the CPU and where there are no statistics."""
    device = context.device()
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return module if hasattr(module, "max_memory_allocated") else None
