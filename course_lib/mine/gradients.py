"""The places of chapters 2, 3 and 9 in a step: gradients added up, averaged and measured.

    9.3 which gradient over which ranks  ->  3.3 in buckets, cut by 3.2  ->  2.3 a ring  ->  2.1 and 2.2, its halves

Each calls the next one where both are the reader's; where one is not, the course's stands in between.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups import gradients as groups_gradients
from course_lib.groups.gradients import clip, pack, unpack, unpack_into
from course_lib.groups.membership import Group, Member, member
from course_lib.hybrid_parallel import kinds, trainer
from course_lib.hybrid_parallel.kinds import EXPERTS, Kind
from course_lib.hybrid_parallel.model import HybridModel, gradients_here
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place

BUCKET_BYTES = 1 << 16  # so that the small models of the course have several buckets


class Rerouted:
    """torch.distributed with another all_reduce, for the one module that uses it."""

    def __init__(self, all_reduce: Callable) -> None:
        self.all_reduce = all_reduce

    def __getattr__(self, name: str) -> object:
        return getattr(dist, name)


# 2.3: the all-reduce of all gradients

def ring(book: Book) -> Iterator[Place]:
    """The place of 2.3: all-reduces of gradients by the reader's ring."""

    def all_reduce(tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM, group: Group = None) -> None:
        if tensor.dim() == 0:  # a norm: one number, which no ring can cut
            dist.all_reduce(tensor, op, group=group)
        else:
            book.add_up(tensor, member(group))

    yield Place(groups_gradients, "dist", Rerouted(all_reduce))


# 3.3 and 3.2: the average, in buckets

def average(book: Book) -> Iterator[Place]:
    """The place of chapter 3's averages: gradients of replicas, in the reader's buckets."""

    def average_gradients(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
        trained, me = [p for p in parameters if p.requires_grad], member(group)
        with_gradients(trained, lambda found: average_in_buckets(book, found, me))

    yield Place(kinds, "average_gradients", average_gradients)


def average_in_buckets(book: Book, tensors: Sequence[Tensor], me: Member) -> None:
    """Each of `tensors` becomes the mean over the ranks, in place, by my_bucketed_average."""
    if me.n == 1:
        return
    model = nn.ParameterList(nn.Parameter(tensor.detach()) for tensor in tensors)
    for parameter, tensor in zip(model, tensors):
        parameter.grad = tensor

    def means() -> list[Tensor]:
        flat, shapes = pack(tensors)
        dist.all_reduce(flat, group=me.group)
        return unpack(flat / me.n, shapes)

    def by_answer() -> list[Tensor]:
        book.of("3.3", me)(model, BUCKET_BYTES)
        return [parameter.grad for parameter in model]

    for gradient, tensor in zip(book.compare("3.3", me, by_answer, means), tensors):
        if gradient is not tensor:
            tensor.copy_(gradient)


def with_gradients(parameters: Sequence[nn.Parameter], change: Callable[[list[Tensor]], None]) -> None:
    """change(all .grad), with zeros for a parameter that has none; it has none again where they stay zeros."""
    without = {parameter for parameter in parameters if parameter.grad is None}
    for parameter in without:
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        change([parameter.grad for parameter in parameters])
    for parameter in without:
        if not parameter.grad.any():
            parameter.grad = None


# 9.3: which gradients over which ranks

WORDS = {"split": "split", "whole": "replicated", "sequence": "replicated", "experts": "expert"}


def word_of(kind: Kind) -> str:
    """What 9.3 calls it. Backward itself has added up over tp and pp: a tied one is like any other by then."""
    return WORDS[kind.name.partition(",")[0]]


def by_kind(book: Book) -> Iterator[Place]:
    """The place of 9.3: each kind of gradient added up over its axes."""

    def reduce_gradients(kind_of: Mapping[nn.Parameter, Kind], member_of: Callable[..., Member]) -> None:
        trained = sorted((p for p in kind_of if p.requires_grad), key=lambda p: word_of(kind_of[p]))
        with_gradients(trained, lambda found: reduce([word_of(kind_of[p]) for p in trained], found, member_of))

    def reduce(words: list[str], found: list[Tensor], member_of: Callable[..., Member]) -> None:
        of_word = {word: [g for its, g in zip(words, found) if its == word] for word in dict.fromkeys(words)}
        flat, shapes = {}, {}
        for word, gradients in of_word.items():
            flat[word], shapes[word] = pack(gradients)
            if word == WORDS[EXPERTS.name]:
                flat[word] *= member_of("ep").n  # by which the course has divided them in backward

        def all_reduce(tensor: Tensor, *axes: str) -> None:
            parts = next((unpack(tensor, shapes[word]) for word in flat if flat[word] is tensor), [tensor])
            add_up(book, parts, member_of(*axes))

        def by_answer() -> list[Tensor]:
            ranks = torch.ones((), dtype=torch.float64)  # all have as many tokens: means stay means
            book.of("9.3")(flat, {word: word for word in flat}, ranks, all_reduce)
            return list(flat.values())

        book.compare("9.3", None, by_answer, lambda: [mean(word, flat[word], member_of) for word in flat])
        for word, gradients in of_word.items():
            unpack_into(gradients, flat[word])

    yield Place(kinds, "reduce_gradients", reduce_gradients)


def mean(word: str, flat: Tensor, member_of: Callable[..., Member]) -> Tensor:
    """What 9.3 should make of a kind's gradients."""
    total, me = flat.clone(), member_of(*(("edp",) if word == "expert" else ("dp", "cp")))
    if me.n > 1:
        dist.all_reduce(total, group=me.group)
    return total / member_of("dp", "cp").n


def add_up(book: Book, tensors: Sequence[Tensor], me: Member) -> None:
    """Each of `tensors` becomes the sum over the ranks, in place."""
    if me.n > 1 and book.has("3.3"):
        average_in_buckets(book, tensors, me)
        for tensor in tensors:
            tensor *= me.n
    elif me.n > 1:
        flat, _ = pack(tensors)
        book.add_up(flat, me)
        unpack_into(tensors, flat)


# 9.4: the norm

def norm(book: Book) -> Iterator[Place]:
    """The place of 9.4: one norm over all ranks, by which gradients are clipped."""

    @torch.no_grad()
    def clip_grad_norm_(model: HybridModel, max_norm: float, norm_type: float = 2.0) -> Tensor:
        found, where = gradients_here(model), model.layout.coordinates(dist.get_rank())
        edp = model.layout.member("edp").r
        words = {name: "tied" if "pp" in model.kinds[name].in_backward else
                 word_of(model.kinds[name]) for name in found}

        def by_answer() -> Tensor:
            return torch.tensor(book.of("9.4")(found, words, {**where, "edp": edp}, norm_type,
                                               model.layout.zero_stage > 0))

        value = book.compare("9.4", None, by_answer, lambda: course(model, float("inf"), norm_type))
        clip(list(found.values()), max_norm, value)
        return value

    course = trainer.clip_grad_norm_
    yield Place(trainer, "clip_grad_norm_", clip_grad_norm_)
