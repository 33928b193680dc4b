"""The places of chapters 2 and 6 under ZeRO: who averages which block of a gradient, and how all get the parameters.

Where gradients are sharded, chapter 2's ring comes in its two halves: 2.1 averages, 2.2 gathers what others stepped on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.membership import Group, Member, member
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place
from course_lib.zero import optimizer as zero_optimizer
from course_lib.zero import units
from course_lib.zero.flat import FlatBucket, make_buckets

# 2.1 and 2.2: the two halves of an all-reduce

def reduce_scatter(book: Book) -> Iterator[Place]:
    """The place of 2.1 under ZeRO: the average of this rank's block of a flat gradient."""

    def start_reduce_scatter(flat: Tensor, group: Group, tag: int, blocks_ahead: int | None = None
                             ) -> Callable[[Tensor], None]:
        me = member(group)
        if me.n == 1 or not flat.numel():
            return course(flat, group, tag, blocks_ahead)
        S = flat.numel() // me.n
        even = nn.functional.pad(flat.view(me.n, S), (0, S % 2))  # the ring cuts each block in two
        total = book.compare("2.1", me, lambda: book.of("2.1", me)(even.view(-1))[:S], lambda: sum_of(flat, me, S))

        def finish(out: Tensor) -> None:
            out.copy_(total / me.n)

        return finish

    course = units.start_reduce_scatter
    for user in (zero_optimizer, units):
        yield Place(user, "start_reduce_scatter", start_reduce_scatter)


def sum_of(flat: Tensor, me: Member, S: int) -> Tensor:
    """This rank's block (S,) of the sum of all ranks' `flat`."""
    total = flat.clone()
    dist.all_reduce(total, group=me.group)
    return total[me.r * S:(me.r + 1) * S]


def all_gather(book: Book) -> Iterator[Place]:
    """The place of 2.2 under ZeRO: all blocks of the parameters, in place."""

    def start_all_gather(flat: Tensor, group: Group, tag: int) -> Callable[[], None]:
        me = member(group)
        if me.n == 1 or not flat.numel():
            return course(flat, group, tag)

        def gather_by_course() -> Tensor:
            whole = flat.clone()
            course(whole, group, tag)()
            return whole

        own = flat.chunk(me.n)[me.r].clone()
        flat.copy_(book.compare("2.2", me, lambda: book.of("2.2", me)(own), gather_by_course))
        return lambda: None

    course = units.start_all_gather
    for user in (zero_optimizer, units):
        yield Place(user, "start_all_gather", start_all_gather)


# 6.3: ZeRO 2, gradients scattered while backward runs

class Scattered(zero_optimizer.Stage):
    """In the place of ZeRO's Stage2: the reader's hooks average, and what they leave is added up over micro-batches."""

    def __init__(self, book: Book, buckets: Sequence[FlatBucket], me: Member) -> None:
        super().__init__(buckets, me)
        model = nn.Module()
        for bucket in buckets:
            model.register_parameter(str(bucket.index), *bucket.parameters)
        self.pieces = book.of("6.3", me)(model)
        for bucket in buckets:  # registered after the reader's, so it runs after them
            bucket.parameters[0].register_post_accumulate_grad_hook(lambda _, bucket=bucket: self.keep(book, bucket))

    def keep(self, book: Book, bucket: FlatBucket) -> None:
        """Take the piece that the reader's hook left for `bucket`. An answer that left none is refused."""
        piece = self.pieces.pop(str(bucket.index), None)
        book.require(piece is not None and piece.shape == (bucket.S,), "6.3",
                     f"its hook left no piece of {bucket.S} numbers")
        if self.closed:
            self.forget()
        bucket.add_gradient(piece)

    def reduce(self) -> None:
        """Nothing: backward has averaged already."""


def scatter_in_backward(book: Book) -> Iterator[Place]:
    """Each parameter is a bucket of its own, as in the exercise."""
    course = zero_optimizer.when_complete

    def when_complete(parameters: Iterable[nn.Parameter], method: Callable) -> None:
        if not isinstance(method.__self__.stage, Scattered):
            course(parameters, method)

    yield Place(zero_optimizer, "Stage2", lambda buckets, me: Scattered(book, buckets, me))
    yield Place(zero_optimizer, "when_complete", when_complete)
    yield Place(zero_optimizer, "make_buckets", lambda parameters, _, *more: make_buckets(parameters, 0, *more))
