"""Exercise 4.7: 1F1B on several chunks a rank. "F3.1" is micro-batch 3 on the rank's chunk 1, "F3" on its chunk 0.

The library's order has the papers' head start, two forwards a rank, which gives messages time to travel. Here they
travel in no time, so one a rank is enough and holds less: another order than the notebook's picture.

    p  ranks, r this one      m  micro-batches, a multiple of p      v  chunks a rank: stages r, p + r, 2p + r ...
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from course_lib.grading.chapters.pipeline_parallel.orders import OrderExercise, Orders, schedule_of

if TYPE_CHECKING:
    from course_lib.pipeline_parallel import Schedule


class InterleavedOrder(OrderExercise):
    number = "4.7"
    function = "my_interleaved"
    points = 4
    held = "chunk"
    sizes = ((4, 8, 2), (2, 6, 3), (3, 3, 2), (4, 8, 1))
    budget = "(p-1)/(vm+p-1) idle; rank r holds at most vp - r chunks of activations at a time"
    hints = (
        "Two lists, one of all forwards and one of all backwards, in the order in which they come: groups of p "
        "micro-batches, and a group passes all chunks before the next one begins. Then it is 1F1B: how long a head "
        "start have the forwards?",
        "Backward takes the chunks from the last to the first. On the last rank the first gradient can come back as "
        "soon as micro-batch 0 is through its last chunk, and its group has been through all chunks before that. Each "
        "rank before it needs one forward more.",
        "groups = range(0, num_microbatches, num_ranks)\n"
        "forwards = [...]  # for g in groups, for c in range(num_chunks), for i in the group\n"
        "backwards = [...]  # the same, but which chunk comes first?\n"
        "ahead = (num_chunks - 1) * ... + ...\n"
        "turns = [action for pair in zip(forwards[ahead:], backwards) for action in pair]\n"
        "return forwards[:ahead] + turns + ...",
    )

    def draw(self, source: random.Random) -> tuple[int, ...]:
        return 4, 4 * source.randint(1, 3), source.randint(2, 3)

    def label(self, p: int, m: int, v: int) -> str:
        return f"{p} ranks, {m} micro-batches, {v} chunk{'s' * (v > 1)} a rank"

    def num_chunks(self, p: int, m: int, v: int) -> int:
        return v

    def par(self, p: int, m: int, v: int) -> "Schedule":
        return schedule_of([written(p, m, v, p - 1 - r + (v - 1) * p) for r in range(p)], m, v)

    def mistakes(self, p: int, m: int, v: int) -> Iterable[tuple[str, Orders]]:
        def orders(ahead: Callable[[int], int], **more: Any) -> Orders:
            return [written(p, m, v, ahead(r), **more) for r in range(p)]

        def right(r: int) -> int:
            return p - 1 - r + (v - 1) * p

        yield "the head start is that of one chunk: a micro-batch has to pass all v", orders(lambda r: p - 1 - r)
        yield ("this is the papers' head start of two forwards a rank, which gives messages time to travel: here they "
               "take none, and one a rank is enough", orders(lambda r: right(r) + p - 1 - r))
        yield ("one forward too many comes before the first backward: the turns begin with a forward",
               orders(lambda r: right(r) + 1))
        yield ("one group too many comes before the first backward: the last chunk's turn is among the turns",
               orders(lambda r: right(r) + p))
        yield ("all ranks get the head start of the first: the later a rank is, the sooner its first gradient comes",
               orders(lambda r: right(0)))
        yield ("all micro-batches pass a chunk before the next chunk begins: they go in groups of p, which pass all "
               "chunks before the next group begins", orders(lambda r: right(r) + (v - 1) * (m - p), size=m))
        yield ("backward begins with the first chunk: gradients come from the end of the model, so with the last one",
               orders(right, last_first=False))
        yield ("one micro-batch after the other passes all chunks, and between two of its chunks the rank waits for "
               "the others: let p of them follow each other", orders(right, size=1))
        yield ("this is GPipe: everything goes forward before the first gradient comes back",
               orders(lambda r: v * m))


def written(p: int, m: int, v: int, ahead: int, size: int | None = None, last_first: bool = True) -> list[str]:
    """A rank's list, `ahead` forwards before the turns begin, micro-batches in groups of `size`."""
    back = range(v)[::-1] if last_first else range(v)
    return taking_turns(grouped("F", m, range(v), size or p), grouped("B", m, back, size or p), ahead)


def grouped(kind: str, m: int, chunks: Sequence[int], size: int) -> list[str]:
    """This kind of action in groups of `size` micro-batches, each of which passes all chunks."""
    return [f"{kind}{i}.{c}" if c else f"{kind}{i}" for start in range(0, m, size) for c in chunks
            for i in range(start, min(start + size, m))]


def taking_turns(forwards: list[str], backwards: list[str], ahead: int) -> list[str]:
    """`ahead` forwards, then one forward and one backward in turns, then the backwards that are left."""
    ahead = min(ahead, len(forwards))
    turns = [action for pair in zip(forwards[ahead:], backwards) for action in pair]
    return [*forwards[:ahead], *turns, *backwards[len(forwards) - ahead:]]
