"""Sets of times, as sorted lists of disjoint (start, end)."""

from collections.abc import Iterable

Intervals = list[tuple[float, float]]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The times inside at least one of `intervals`, which may overlap and come in any order.

    >>> union([(3, 4), (0, 1), (0.5, 2)])
    [(0, 2), (3, 4)]
    """
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(these: Intervals, those: Intervals) -> Intervals:
    """The times inside both.

    >>> intersection([(0, 2), (3, 5)], [(1, 4)])
    [(1, 2), (3, 4)]
    """
    both: Intervals = []
    i = j = 0
    while i < len(these) and j < len(those):
        start, end = max(these[i][0], those[j][0]), min(these[i][1], those[j][1])
        if start < end:
            both.append((start, end))
        if these[i][1] < those[j][1]:
            i += 1
        else:
            j += 1
    return both


def longest_outside(start: float, end: float, taken: Intervals) -> tuple[float, float]:
    """The longest stretch between `start` and `end` that none of `taken` covers; of length 0 where there is none."""
    edges = [start, *(edge for interval in intersection([(start, end)], taken) for edge in interval), end]
    return max(zip(edges[::2], edges[1::2]), key=lambda stretch: stretch[1] - stretch[0])


def length(intervals: Intervals) -> float:
    """Seconds in all of them."""
    return sum(end - start for start, end in intervals)


def side_by_side(intervals: list[tuple[float, float]]) -> list[int]:
    """A row for each of `intervals`, the first one free: those in one row do not overlap."""
    row_ends: list[float] = []
    row_of = [0] * len(intervals)
    for index in sorted(range(len(intervals)), key=lambda index: intervals[index]):
        start, end = intervals[index]
        row = next((row for row, free in enumerate(row_ends) if free <= start), len(row_ends))
        row_ends[row:row + 1] = [end]
        row_of[index] = row
    return row_of
