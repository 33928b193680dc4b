"""The places of chapter 8 in a layer with experts: which experts, how rows come to them, and what evens them out."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from course_lib.collectives.differentiable import Pair
from course_lib.expert_parallel import layer, routing
from course_lib.expert_parallel.dispatch import Choices
from course_lib.expert_parallel.experts import Experts
from course_lib.expert_parallel.layer import moe_layers
from course_lib.expert_parallel.routing import Routing
from course_lib.groups.membership import Group, Member, member
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place

parallelizing = importlib.import_module("course_lib.hybrid_parallel.parallelize")  # a function has this name, too

# 8.1: for routers of sigmoids whose weights add up to 1


def gate(book: Book) -> Iterator[Place]:
    """The place of 8.1: which experts see a token. Other kinds of routing than the exercise's stay the course's."""
    course = routing.route

    def route(logits: Tensor, k: int, scoring: str = "softmax", normalize: bool = True, bias: Tensor | None = None,
              num_groups: int | None = None, top_groups: int | None = None) -> Routing:
        if scoring != "sigmoid" or not normalize or k == 1 or num_groups is not None:
            return course(logits, k, scoring, normalize, bias, num_groups, top_groups)
        bias = logits.new_zeros(logits.shape[1]) if bias is None else bias
        experts, weights = book.of("8.1")(logits, bias, k, 1, 1.0)
        book.require(experts.shape == (len(logits), k), "8.1", f"it chose {list(experts.shape)} experts")
        return Routing(experts, weights, logits.sigmoid(), logits)

    yield Place(routing, "route", route)


# 8.2 where all experts are here, 8.3 where they are dealt out

def through(book: Book) -> Iterator[Place]:
    """The places of 8.2, on one rank, and 8.3, on several: tokens through experts and back."""
    course = layer.through_experts

    def through_experts(tokens: Tensor, choices: Choices, compute: Experts, me: Member) -> Tensor:
        by_course = partial(course, tokens, choices, compute, me)
        experts, weights, kept, num_experts = choices
        if me.n == 1 and book.has("8.2") and kept is None:
            return book.compare("8.2", None, lambda: in_blocks(book, tokens, experts, weights, num_experts, compute),
                                by_course)
        if me.n > 1 and book.has("8.3") and num_experts % me.n == 0:
            where = choices_by_expert(experts, weights, kept, num_experts)
            return book.compare("8.3", me, lambda: dealt_out(book, tokens, where, compute, me), by_course)
        return by_course()

    yield Place(layer, "through_experts", through_experts)


def in_blocks(book: Book, tokens: Tensor, experts: Tensor, weights: Tensor, num_experts: int, compute: Experts
              ) -> Tensor:
    """Tokens (N, D) through experts by the reader's 8.2: sorted into blocks, computed, put back."""
    rows, back = book.of("8.2")(tokens, experts, weights, num_experts, 1)
    return back(compute(rows, experts.flatten().bincount(minlength=num_experts).tolist()))


def choices_by_expert(experts: Tensor, weights: Tensor, kept: Tensor | None, num_experts: int) -> tuple[Tensor, Tensor]:
    """(choices uint8 (N, E), weights (N, E)): of each token, where it goes, and how much that counts."""
    choices = torch.ones_like(experts, dtype=torch.uint8) if kept is None else kept.to(torch.uint8)
    wide = choices.new_zeros(len(experts), num_experts).scatter(1, experts, choices)
    return wide, weights.new_zeros(len(experts), num_experts).scatter(1, experts, weights)


def dealt_out(book: Book, tokens: Tensor, where: tuple[Tensor, Tensor], compute: Experts, me: Member) -> Tensor:
    """A token travels once to a rank, with its weights behind it; each rank weighs and adds up what it made of it."""
    (choices, weights), D = where, tokens.shape[1]
    dispatch = book.of("8.3", me)
    trip = RoundTrip(dispatch, choices)
    rows = Pair.apply(torch.cat([tokens, weights], 1), trip.there, trip.home)  # (M, D + E)
    E_r = trip.theirs.shape[1]
    book.require(trip.theirs.shape == (len(rows), choices.shape[1] // me.n), "8.3", "`theirs` has another shape")
    expert, row = trip.theirs.T.nonzero().unbind(1)  # by expert
    made = compute(rows[row, :D], expert.bincount(minlength=E_r).tolist())
    weight = rows[row, D + me.r * E_r + expert].unsqueeze(1)
    y = torch.zeros_like(rows[:, :D]).index_add(0, row, made * weight)
    return Pair.apply(nn.functional.pad(y, (0, rows.shape[1] - D)), trip.home, trip.again)[:, :D]


class RoundTrip:
    """One dispatch: where rows went, so that results and gradients go the same way."""

    def __init__(self, dispatch: Callable, choices: Tensor) -> None:
        self.dispatch, self.choices = dispatch, choices

    def there(self, tokens: Tensor) -> Tensor:
        """Send the tokens by the reader's dispatch, and keep its way back for later."""
        received, self.theirs, self.back = self.dispatch(tokens, self.choices)
        return received

    def home(self, y: Tensor) -> Tensor:
        """Rows back to their tokens: the sum of what ranks made of a token, or of its gradients."""
        return self.back(y.contiguous())

    def again(self, gradient: Tensor) -> Tensor:
        """The way back of `home`: each summand gets the sum's gradient."""
        return self.dispatch(gradient.contiguous(), self.choices)[0]


# 8.4: it balances ranks, and so experts where each rank has one

def balance(book: Book) -> Iterator[Place]:
    """The place of 8.4: the loss that evens out experts, where it is the exercise's."""
    course = parallelizing.auxiliary_loss

    def auxiliary_loss(model: nn.Module, balance: float = 0.0, z: float = 0.0, group: Group = None) -> Tensor:
        layers, me = moe_layers(model), member(group)
        fits = all(each.num_experts == me.n and each.router.scoring == "softmax" for each in layers)
        if z or not fits:
            return course(model, balance, z, group)
        return sum(balance * book.of("8.4", me)(each.last_routing().logits, each.router.k) for each in layers)

    yield Place(parallelizing, "auxiliary_loss", auxiliary_loss)
