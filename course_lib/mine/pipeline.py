"""The places of chapters 4 and 9 before the first step: which layers a stage has, in what order it works, who is where.
"""

import importlib
from collections.abc import Callable, Iterator
from itertools import accumulate

from course_lib.hybrid_parallel.layout import AXES, ParallelLayout
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place
from course_lib.pipeline_parallel import Schedule, validate
from course_lib.pipeline_parallel.schedules import Action

# Packages export functions of these names
partitions = importlib.import_module("course_lib.pipeline_parallel.partition")
parallelizing = importlib.import_module("course_lib.hybrid_parallel.parallelize")


# 4.1

def partition(book: Book) -> Iterator[Place]:
    """The place of 4.1: how many layers each stage has."""

    def balanced_cuts(costs: list[float], num_stages: int) -> list[int]:
        counts = book.of("4.1")(list(costs), num_stages)
        is_right = len(counts) == num_stages and sum(counts) == len(costs) and min(counts) > 0
        book.require(is_right, "4.1", f"it returned {counts} for {len(costs)} layers and {num_stages} stages")
        return [0, *accumulate(counts)][:-1]

    yield Place(partitions, "balanced_cuts", balanced_cuts)


# 4.2, 4.4, 4.6 and 4.7

def schedule(name: str, number: str, num_chunks: int = 1, last: Callable[[int], tuple[int, ...]] = lambda m: ()
             ) -> Callable[[Book], Iterator[Place]]:
    """The places of one of SCHEDULES. last(m): what the answer is given after (rank, ranks, m micro-batches)."""
    def places(book: Book) -> Iterator[Place]:
        def make_schedule(p: int, m: int) -> Schedule:
            orders = [book.of(number)(r, p, m, *last(m)) for r in range(p)]
            stages = tuple(tuple(chunk * p + r for chunk in range(num_chunks)) for r in range(p))
            found = Schedule(f"your {number}", m, stages, tuple(tuple(map(action, order)) for order in orders))
            try:
                validate(found)
            except ValueError as error:
                book.require(False, number, str(error))
            return found

        yield Place(parallelizing, "SCHEDULES", {**parallelizing.SCHEDULES, name: make_schedule})

    return places


def action(word: str) -> Action:
    """The Action that "F0", "B3" or "F0.1" writes."""
    microbatch, _, chunk = word[1:].partition(".")
    return Action(word[0], int(microbatch), int(chunk or 0))


# 9.2

def groups(book: Book) -> Iterator[Place]:
    """The ranks of a group are those that a node of all ranks has inside."""
    course, kept = ParallelLayout.group_of, {}

    def group_of(layout: ParallelLayout, rank: int, *axes: str) -> list[int]:
        expected = course(layout, rank, *axes)
        if not set(axes) <= set(AXES):
            return expected
        if (layout, axes) not in kept:
            sizes = {axis: layout.size(axis) for axis in AXES}
            inside, _ = book.of("9.2")(list(axes), sizes, ",".join(layout.axes), layout.world_size)
            kept[layout, axes] = {member: sorted(ranks) for ranks in inside for member in ranks}
        found = kept[layout, axes].get(rank)
        book.require(found == expected, "9.2", f"rank {rank} is in the group {found} of {axes}: expected {expected}")
        return found

    yield Place(ParallelLayout, "group_of", group_of)
