"""The places of chapters 5 and 7 in a layer: what ranks of tp, and of cp, say to each other forward and backward."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import course_lib.sequence_parallel
import course_lib.tensor_parallel
from course_lib import collectives
from course_lib.groups.membership import Group, Member, member
from course_lib.hybrid_parallel import model as hybrid_model
from course_lib.hybrid_parallel import trainer
from course_lib.hybrid_parallel.model import HybridModel
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place
from course_lib.sequence_parallel.layouts import layout_order
from course_lib.tensor_parallel import linear, vocabulary
from course_lib.tensor_parallel.cut import Cut

SPLIT_BACKWARD = set("IW")


class Product:
    """In the place of a column layer's product: the reader's f of 5.1, or gather of 7.1, and then F.linear."""

    def __init__(self, book: Book, number: str) -> None:
        self.book, self.number = book, number

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None, me: Member) -> Tensor:
        """x W^T + b, as ColumnProduct.apply; the reader's function says what autograd does before the product."""
        before, _ = pair(self.book, self.number, me)
        return F.linear(before(x), weight, bias)


PROBES = {"5.1": (collectives.copy_to_group, collectives.reduce_from_group),
          "7.1": (partial(collectives.all_gather_along, dim=1), partial(collectives.reduce_scatter_along, dim=1))}


def pair(book: Book, number: str, me: Member) -> tuple[Callable, Callable]:
    """(f, g) of 5.1, or (gather, scatter) of 7.1, made each time: it costs two classes."""
    def probe(functions: tuple[Callable, Callable]) -> list[Tensor]:
        return [tensor for function in functions for tensor in there_and_back(function, me)]

    if book.is_first(number, me):
        book.compare(number, me, lambda: probe(book.of(number, me)()),
                     lambda: probe(tuple(partial(function, group=me) for function in PROBES[number])))
    return book.of(number, me)()


@torch.enable_grad()
def there_and_back(function: Callable[[Tensor], Tensor], me: Member) -> tuple[Tensor, Tensor]:
    """What `function` makes of some numbers, and of their gradient."""
    x = (torch.arange(6.0 * me.n, device="cpu").view(1, -1, 3) + me.r).requires_grad_()
    y = function(x)
    return y.detach(), *torch.autograd.grad(y, x, (y.detach() + me.r))


# 5.1 and 7.1

def f_and_g(book: Book) -> Iterator[Place]:
    """The places of 5.1: what goes into a column-parallel layer, and what comes out of a row-parallel one."""

    def reduce_from_group(x: Tensor, group: Group = None) -> Tensor:
        return pair(book, "5.1", member(group))[1](x)

    yield Place(linear, "ColumnProduct", Product(book, "5.1"))
    for user in (linear, vocabulary):
        yield Place(user, "reduce_from_group", reduce_from_group)


def gather_and_scatter(book: Book) -> Iterator[Place]:
    """The places of 7.1: the same where tokens are dealt out between the layers."""

    def reduce_scatter_along(x: Tensor, dim: int, group: Group = None) -> Tensor:
        return pair(book, "7.1", member(group))[1](x)  # dim is that of the tokens, -2 of (B, T, D)

    for name in ("GatheredColumnProduct", "RegatheredColumnProduct"):
        yield Place(linear, name, Product(book, "7.1"))
    yield Place(linear, "reduce_scatter_along", reduce_scatter_along)


# 5.4

def qkv_rows(book: Book) -> Iterator[Place]:
    """The place of 5.4: which rows of a joined q, k, v matrix a rank takes."""
    course = Cut.take

    def take(cut: Cut, whole: Tensor, me: Member) -> Tensor:
        if len(cut.sections) != 3 or cut.dim or me.n == 1:
            return course(cut, whole, me)
        rows = whole if whole.dim() == 2 else whole.unsqueeze(1)  # a bias is a matrix with one column
        q, k, _ = cut.sections
        d = k // me.n  # what a rank has of k counts as a head
        mine = book.compare("5.4", me, lambda: book.of("5.4", me)(rows, q // d, k // d), lambda: course(cut, rows, me))
        return mine.reshape(-1, *whole.shape[1:]).clone()

    yield Place(Cut, "take", take)


# 5.5

class LossWithGradient(torch.autograd.Function):
    """A loss whose gradient is made with it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, function: Callable) -> Tensor:
        """function(logits, targets) gives loss and gradient at once; the gradient is kept for backward."""
        loss, gradient = function(logits.detach(), targets)
        ctx.save_for_backward(gradient.to(logits.dtype))
        return loss.to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        """The gradient that forward kept, times dy."""
        return dy * ctx.saved_tensors[0], None, None


def vocabulary_loss(book: Book) -> Iterator[Place]:
    """The place of 5.5: cross-entropy of logits that are cut by vocabulary."""

    def vocab_parallel_cross_entropy(logits: Tensor, targets: Tensor, group: Group = None) -> Tensor:
        @torch.enable_grad()
        def by_course(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            leaf = logits.detach().requires_grad_()
            loss = course(leaf, targets, group)
            return loss.detach(), *torch.autograd.grad(loss, leaf)

        def function(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            return book.compare("5.5", group, lambda: book.of("5.5", group)(logits, targets, 0.0),
                                lambda: by_course(logits, targets))

        return LossWithGradient.apply(logits, targets, function)

    course = course_lib.tensor_parallel.vocab_parallel_cross_entropy
    yield Place(course_lib.tensor_parallel, "vocab_parallel_cross_entropy", vocab_parallel_cross_entropy)


# 7.3 and 7.7

def positions(book: Book) -> Iterator[Place]:
    """The place of 7.3: where this rank's tokens stand in the row."""

    def local_positions(T: int, group: Group = None) -> Tensor:
        return book.compare("7.3", group, lambda: book.of("7.3", group)([T]), lambda: course(T, group))

    course = hybrid_model.local_positions
    for user in (hybrid_model, course_lib.sequence_parallel):
        yield Place(user, "local_positions", local_positions)


def whole_ring(book: Book) -> Iterator[Place]:
    """The place of 7.7: attention around a ring."""

    def ring_attention(q: Tensor, k: Tensor, v: Tensor, group: Group = None, layout: str = "zigzag") -> Tensor:
        me = member(group)
        places = layout_order(me.n * q.shape[2], me.n, layout).chunk(me.n)
        return book.compare("7.7", me, lambda: book.of("7.7", me)(q, k, v, places),
                            lambda: course(q.detach(), k.detach(), v.detach(), me, layout=layout))

    course = course_lib.sequence_parallel.ring_attention
    yield Place(course_lib.sequence_parallel, "ring_attention", ring_attention)


# 7.5

def recompute_attention(book: Book) -> Iterator[Place]:
    """Attention keeps its input only. Not where backward is cut in two, or hooks of ZeRO wait for its end."""
    course = trainer.parallelize

    def parallelize(*arguments: Any, **options: Any) -> HybridModel:
        model = course(*arguments, **options)
        is_cut = any(action.kind in SPLIT_BACKWARD for actions in model.schedule.actions for action in actions)
        for module in model.modules():
            if hasattr(module, "attend") and model.layout.zero_stage < 2 and not is_cut and not options.get("autocast"):
                module.forward = keeping_input(book, module.forward)
        return model

    yield Place(trainer, "parallelize", parallelize)


def keeping_input(book: Book, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`forward`, of which the reader's 7.5 keeps the input only; as it is where there is no gradient to come."""

    def again(x: Tensor) -> Tensor:
        return book.of("7.5")(forward, x) if torch.is_grad_enabled() and x.requires_grad else forward(x)

    return again
