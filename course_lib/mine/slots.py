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
class AnswerSlot:
    """`needs`: other answers that it calls by name, without which it cannot work."""

    number: str
    places: Callable[[Book], Iterator[Place]]
    needs: tuple[str, ...] = ()

    @property
    def work(self) -> str:
        """What the exercise's text says of it."""
        return recorded.work(self.number)


SLOTS = {slot.number: slot for slot in (
    AnswerSlot("2.1", sharding.reduce_scatter),
    AnswerSlot("2.2", sharding.all_gather),
    AnswerSlot("2.3", gradients.ring, ("2.1", "2.2")),
    AnswerSlot("3.2", called_by_others),
    AnswerSlot("3.3", gradients.average, ("3.2",)),
    AnswerSlot("4.1", pipeline.partition),
    AnswerSlot("4.2", pipeline.schedule("gpipe", "4.2", last=lambda m: (m,))),
    AnswerSlot("4.4", pipeline.schedule("1f1b", "4.4")),
    AnswerSlot("4.6", pipeline.schedule("zb-h1", "4.6")),
    AnswerSlot("4.7", pipeline.schedule("interleaved", "4.7", num_chunks=2, last=lambda m: (2,))),
    AnswerSlot("5.1", layers.f_and_g),
    AnswerSlot("5.4", layers.qkv_rows),
    AnswerSlot("5.5", layers.vocabulary_loss),
    AnswerSlot("6.3", sharding.scatter_in_backward),
    AnswerSlot("7.1", layers.gather_and_scatter),
    AnswerSlot("7.3", layers.positions),
    AnswerSlot("7.5", layers.recompute_attention),
    AnswerSlot("7.7", layers.whole_ring),
    AnswerSlot("8.1", experts.gate),
    AnswerSlot("8.2", experts.through),
    AnswerSlot("8.3", experts.through),
    AnswerSlot("8.4", experts.balance),
    AnswerSlot("9.2", pipeline.groups),
    AnswerSlot("9.3", gradients.by_kind),
    AnswerSlot("9.4", gradients.norm),
    AnswerSlot("9.5", resharding.reshard),
)}


def places(book: Book) -> Iterator[Place]:
    """The places of all answers in `book`."""
    for number, slot in SLOTS.items():
        if book.has(number):
            yield from slot.places(book)
