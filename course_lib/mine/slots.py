"""Which answers go where in a training run: a row for each, with the places that it takes. What its work is there,
in words, stands beside each exercise in solutions/.

What a place does, and when it leaves the work to the course's own, stands beside it: gradients.py, sharding.py,
layers.py, pipeline.py, experts.py, resharding.py. An answer without a row, a whole loop say, trains nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from course_lib.grading import recorded
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
    places: Callable[[Book], Iterator[Place]]
    needs: tuple[str, ...] = ()

    @property
    def work(self) -> str:
        """What the exercise's text says of it."""
        return recorded.work(self.number)


SLOTS = {slot.number: slot for slot in (
    Slot("2.1", sharding.reduce_scatter),
    Slot("2.2", sharding.all_gather),
    Slot("2.3", gradients.ring, ("2.1", "2.2")),
    Slot("3.2", called_by_others),
    Slot("3.3", gradients.average, ("3.2",)),
    Slot("4.1", pipeline.partition),
    Slot("4.2", pipeline.schedule("gpipe", "4.2", last=lambda m: (m,))),
    Slot("4.4", pipeline.schedule("1f1b", "4.4")),
    Slot("4.6", pipeline.schedule("zb-h1", "4.6")),
    Slot("4.7", pipeline.schedule("interleaved", "4.7", num_chunks=2, last=lambda m: (2,))),
    Slot("5.1", layers.f_and_g),
    Slot("5.4", layers.qkv_rows),
    Slot("5.5", layers.vocabulary_loss),
    Slot("6.3", sharding.scattered),
    Slot("7.1", layers.gather_and_scatter),
    Slot("7.3", layers.positions),
    Slot("7.5", layers.recomputed),
    Slot("7.7", layers.whole_ring),
    Slot("8.1", experts.gate),
    Slot("8.2", experts.through),
    Slot("8.3", experts.through),
    Slot("8.4", experts.balance),
    Slot("9.2", pipeline.groups),
    Slot("9.3", gradients.by_kind),
    Slot("9.4", gradients.norm),
    Slot("9.5", resharding.resharded),
)}


def places(book: Book) -> Iterator[Place]:
    """The places of all answers in `book`."""
    for number, slot in SLOTS.items():
        if book.has(number):
            yield from slot.places(book)
