"""Buckets: many gradients in one message, cut by one rule wherever the course sends, holds or simulates them.

One message costs alpha + beta M (links.py), so many small ones pay alpha again and again, and a single large one cannot
start before the last gradient is there. A bucket is the middle. Source: Li et al. 2020, "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", section 3.2.3.
"""

from collections.abc import Sequence


def cut_buckets(sizes_bytes: Sequence[int], cap_bytes: float) -> list[list[int]]:
    """Cut `sizes_bytes` in their order into buckets of at most `cap_bytes`: the indices of each.

    What is larger than `cap_bytes` has a bucket of its own. ValueError for negative sizes or a negative cap.

    >>> cut_buckets([10, 20, 30, 100, 5], cap_bytes=50)
    [[0, 1], [2], [3], [4]]
    """
    if cap_bytes < 0 or any(size < 0 for size in sizes_bytes):
        raise ValueError(f"cap_bytes={cap_bytes!r}, sizes_bytes={list(sizes_bytes)!r}: expected bytes, 0 or more")
    buckets: list[list[int]] = []
    held_bytes = 0
    for index, size in enumerate(sizes_bytes):
        if not buckets or held_bytes + size > cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += size
    return buckets
