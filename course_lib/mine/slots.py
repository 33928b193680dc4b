"""Which answers go where in a training run: a row for each, its work in words and the places that it takes.

What a place does, and when it leaves the work to the course's own, stands beside it: gradients.py, sharding.py,
layers.py, pipeline.py, experts.py, resharding.py. An answer without a row, a whole loop say, trains nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course_lib.mine import experts, gradients, layers, pipeline, resharding, sharding
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place


def called_by_others(book: Book) -> Iterator[Place]:
    """No place of its own: another answer calls it."""
    return iter(())


@dataclass(frozen=True)
class Slot:
    """`needs`: other answers that it calls by name, without which it cannot work."""

    number: str
    work: str
    places: Callable[[Book], Iterator[Place]]
    needs: tuple[str, ...] = ()


SLOTS = {slot.number: slot for slot in (
    Slot("2.1", "adds up gradients: half a ring", sharding.reduce_scatter),
    Slot("2.2", "gives the sums to all: the other half", sharding.all_gather),
    Slot("2.3", "all-reduces gradients", gradients.ring, ("2.1", "2.2")),
    Slot("3.2", "cuts gradients into buckets", called_by_others),
    Slot("3.3", "averages gradients bucket by bucket", gradients.average, ("3.2",)),
    Slot("4.1", "cuts layers into stages", pipeline.partition),
    Slot("4.2", "orders a pipeline in rounds: gpipe", pipeline.schedule("gpipe", "4.2", last=lambda m: (m,))),
    Slot("4.4", "orders a pipeline: 1f1b", pipeline.schedule("1f1b", "4.4")),
    Slot("4.6", "orders a pipeline with W apart: zb-h1", pipeline.schedule("zb-h1", "4.6")),
    Slot("4.7", "orders a pipeline of chunks: interleaved",
         pipeline.schedule("interleaved", "4.7", num_chunks=2, last=lambda m: (2,))),
    Slot("5.1", "adds up over tp, forward and backward", layers.f_and_g),
    Slot("5.4", "cuts q, k and v by heads", layers.qkv_rows),
    Slot("5.5", "the loss of logits that nobody has whole", layers.vocabulary_loss),
    Slot("6.3", "scatters gradients in backward: zero2", sharding.scattered),
    Slot("7.1", "gathers and scatters tokens: sequence parallelism", layers.gather_and_scatter),
    Slot("7.3", "deals out tokens over cp", layers.positions),
    Slot("7.5", "recomputes attention in backward", layers.recomputed),
    Slot("7.7", "attention around a ring of cp", layers.whole_ring),
    Slot("8.1", "chooses experts: sigmoids", experts.gate),
    Slot("8.2", "puts rows in the order of experts: all here", experts.through),
    Slot("8.3", "sends rows to experts, and results home: ep", experts.through),
    Slot("8.4", "evens out experts, one on each rank", experts.balance),
    Slot("9.2", "says which ranks are a group", pipeline.groups),
    Slot("9.3", "adds up each gradient over its axes", gradients.by_kind),
    Slot("9.4", "the norm of the whole gradient", gradients.norm),
    Slot("9.5", "reads a checkpoint of another layout", resharding.resharded),
)}


def places(book: Book) -> Iterator[Place]:
    """Of all answers in `book`."""
    for number, slot in SLOTS.items():
        if book.has(number):
            yield from slot.places(book)
