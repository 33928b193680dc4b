"""Exercises 5.2 and 5.3: a gated layer by columns, and one by rows, whose bias and residual count once.

    t  ranks, r this one      x (B, T, D)      W (F, D): its r-th piece of rows, or of columns, belongs to rank r
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.calls import num_calls
from course_lib.grading.chapters.split import (
    Leaves,
    SplitExercise,
    Tensors,
    all_reduce_bytes,
    both_add,
    f,
    forth_and_back,
    g,
    normal,
    nothing,
    played,
    scaled_back,
)
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent, amount

Answers = list[dict[str, Any]]
Inputs = list[dict[str, Any]]
SIZES = ((3, (1, 2, 3, 2)), (2, (2, 2, 4, 1)), (1, (1, 2, 2, 3)), (4, (2, 32, 64, 8)))  # t, and B, T, D, F/t


class GatedColumns(SplitExercise):
    number = "5.2"
    function = "my_gated_columns"
    points = 3
    budget = "nothing sent in forward; one all-reduce of B T D numbers in backward, for both matrices together"
    hints = (
        "Which rows of a torch weight make which features of the output? And who else reads x, so that its gradient "
        "has other parts elsewhere?",
        "weight.chunk(t)[r] are this rank's rows. Both matrices read the same copy of x: what f gives is used twice, "
        "and autograd adds the two gradients up before f's backward sends them.",
        "f, _ = my_f_and_g()\n"
        "x = f(x)\n"
        "gate, up = (... for weight in (gate, up))  # this rank's rows of each\n"
        "return F.silu(F.linear(x, gate)) * ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, T, D, part) in SIZES:
            given = {"x": normal(generator, B, T, D),
                     "gate": normal(generator, t * part, D, scale=D**-0.5),
                     "up": normal(generator, t * part, D, scale=D**-0.5)}
            ranks = [{"given": given, "dy": normal(generator, B, T, part)} for _ in range(t)]
            made.append(Trial(ranks, f"{ranks_of(t)}, {amount(8 * B * T * D)} of x"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        return forth_and_back(inputs, lambda leaves: function(*leaves.values()))

    def expected(self, inputs: Inputs) -> Answers:
        return played(inputs, gated)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t = len(inputs)
        yield ("forward is right, but the gradient of x is this rank's part: every rank reads all of x, so its "
               "gradient is a sum over the ranks, which f makes", played(inputs, lambda all: gated(all, nothing)))
        yield ("x goes through g, and is t times too large: what comes in is whole already, so f",
               played(inputs, lambda all: gated(all, g)))
        yield "every rank computes all features: rank r has the r-th piece of rows of each weight", played(
            inputs, lambda all: gated(all, cut=lambda weight, r: weight))
        yield ("rank r has the rows r, r + t, r + 2t: its features lie next to each other, as weight.chunk(t)[r]",
               played(inputs, lambda all: gated(all, cut=lambda weight, r: weight[r::t])))
        yield "every rank computes rank 0's features: take the r-th piece", played(
            inputs, lambda all: gated(all, cut=lambda weight, r: weight.chunk(t)[0]))
        yield ("the gates and the others have changed places: silu belongs to `gate`",
               played(inputs, lambda all: gated([{"x": own["x"], "gate": own["up"], "up": own["gate"]}
                                                 for own in all])))
        yield ("the gradient of x is a mean over the ranks: its parts are summands, so nothing is divided",
               played(inputs, lambda all: gated(all, lambda xs: scaled_back(f(xs), 1 / t))))
        yield ("gate and up are cut as one: each rank has the r-th piece of gate and the r-th piece of up",
               played(inputs, as_one))

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1, "apply f once, and let both matrices read what it gives: autograd adds their "
                                      "gradients up before f sends them")]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.inputs[0]["given"]["x"].numel())

    def waste(self, answers: list[Any]) -> str:
        return "only the gradient of x has to be added up, and nothing in forward"


def piece(weight: Tensor, r: int, t: int, dim: int = 0) -> Tensor:
    return weight.chunk(t, dim)[r]


def gated(ranks: list[Leaves], copies: Callable[[Tensors], Tensors] = f,
          cut: Callable[[Tensor, int], Tensor] | None = None) -> Tensors:
    """Each rank's features: silu(x G^T) * (x U^T)."""
    cut = cut or (lambda weight, r: piece(weight, r, len(ranks)))
    xs = copies([own["x"] for own in ranks])
    return [F.silu(F.linear(x, cut(own["gate"], r))) * F.linear(x, cut(own["up"], r))
            for r, (x, own) in enumerate(zip(xs, ranks))]


def as_one(ranks: list[Leaves]) -> Tensors:
    """Pieces of [gate; up] taken for what a rank has of both."""
    t, xs = len(ranks), f([own["x"] for own in ranks])
    halves = [torch.cat([own["gate"], own["up"]]).chunk(t)[r].chunk(2) for r, own in enumerate(ranks)]
    return [F.silu(F.linear(x, gate)) * F.linear(x, up) for x, (gate, up) in zip(xs, halves)]


class RowWithResidual(SplitExercise):
    number = "5.3"
    function = "my_row_linear"
    points = 3
    budget = "one all-reduce of B T F numbers in forward, nothing in backward"
    hints = (
        "What of the result is a sum of parts that lie on different ranks, and what does every rank have already? "
        "Only the first goes through g. And in which dimension of the weight are its columns?",
        "weight.chunk(t, dim=1)[r] are the columns that fit this rank's features. Its product is a summand of the "
        "result: g adds up. Bias and residual are the same on all ranks: add them to the sum, so that they count once, "
        "and so that each rank has their whole gradient.",
        "_, g = my_f_and_g()\n"
        "summand = F.linear(x, ...)  # without the bias\n"
        "return g(summand) + ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, T, out, part) in SIZES:
            shared = {"weight": normal(generator, out, t * part, scale=part**-0.5), "bias": normal(generator, out),
                      "residual": normal(generator, B, T, out)}
            dy = normal(generator, B, T, out)
            ranks = [{"given": {"x": normal(generator, B, T, part), **shared}, "dy": dy} for _ in range(t)]
            made.append(Trial(ranks, f"{ranks_of(t)}, {amount(dy.nbytes)} of results"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        return forth_and_back(inputs, lambda leaves: function(*leaves.values()))

    def expected(self, inputs: Inputs) -> Answers:
        return played(inputs, by_rows)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t = len(inputs)

        def variant(cause: str, **changes: Any) -> tuple[str, Answers]:
            return cause, played(inputs, lambda all: by_rows(all, **changes))

        for names, words in ((("bias",), "the bias is"), (("residual",), "the residual is"),
                             (("bias", "residual"), "bias and residual are")):
            yield variant(f"{words} added t times, once on every rank before the sum: add to the sum", inside=names)
            yield variant(f"forward is right, because {words} divided by t before the sum; but each gradient is "
                          "divided as well: add to the sum, undivided", inside=names, share=lambda r: 1 / t)
            yield variant(f"forward is right, but {words} added by one rank alone, so that only there is a gradient, "
                          "and the copies of the ranks part with the first step: add to the sum, on all ranks",
                          inside=names, share=lambda r: 1 if r == 0 else None)
            yield variant(f"{words} missing", without=names)
        yield variant("nobody adds up: what a rank computes is a summand of the result", adds=nothing)
        yield variant("the gradients are added up as well, though every rank has the whole gradient of the sum already "
                      "(so does torch.distributed.nn's all_reduce): backward of g is a copy", adds=both_add)
        yield variant("the summands are averaged: they are parts of one product, so nothing is divided",
                      adds=lambda xs: [y / t for y in g(xs)])
        yield variant("the gradients of x and weight are missing: what is added up does not lead back to them, so "
                      "let g do it", adds=lambda xs: [y.detach() for y in g(xs)])
        yield variant("every rank takes rank 0's columns: take the r-th piece along dim 1", columns=lambda r: 0)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1, "only the product is a sum over the ranks")]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, trial.inputs[0]["dy"].numel())

    def waste(self, answers: list[Any]) -> str:
        return "add up the summands, once; weights and inputs stay where they are"


def by_rows(ranks: list[Leaves], adds: Callable[[Tensors], Tensors] = g, inside: tuple[str, ...] = (),
            share: Callable[[int], float | None] = lambda r: 1.0, without: tuple[str, ...] = (),
            columns: Callable[[int], int] = lambda r: r) -> Tensors:
    """residual + sum of x W^T + bias on each rank; other arguments are mistakes.

    inside: what each rank adds to its summand, times share(r), or not where that is None.
    """
    t, summands = len(ranks), []
    for r, own in enumerate(ranks):
        summand, times = F.linear(own["x"], piece(own["weight"], columns(r), t, dim=1)), share(r)
        for name in inside if times is not None else ():
            summand = summand + times * own[name]
        summands.append(summand)
    ys = adds(summands)
    for name in ("bias", "residual"):
        if name not in (*inside, *without):
            ys = [y + own[name] for y, own in zip(ys, ranks)]
    return ys
