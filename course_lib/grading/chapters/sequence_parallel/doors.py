"""Exercise 7.1: sequence parallelism's two doors: all-gather and reduce-scatter, each of them the other's way back.

    t  ranks      x (B, T/t, D)  this rank's tokens      w, h (B, T, D)  of each rank      c  the gradient that comes in
    h = exp(w gather(x))    s = scatter(h)    loss = sum(c s)
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls, num_calls
from course_lib.grading.chapters.split import PartsExercise, Tensors, normal
from course_lib.grading.compare import describe, plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent, amount

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
NAMES = {"gathered": "gather(x)", "scattered": "scatter(h)", "w": "the gradient of w", "x": "the gradient of x"}


class GatherAndScatter(PartsExercise):
    number = "7.1"
    function = "my_gather_and_scatter"
    points = 3
    parts = NAMES
    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce
    right = "gather and scatter are right"
    budget = "one collective each way, four in all; 4(t-1) M bytes sent by each rank, M those of its own tokens"
    hints = (
        "Whatever is copied to all ranks in forward is added up over them in backward, and the other way round. Here "
        "the copies are of pieces, and of a sum each rank wants a piece.",
        "gather: forward all_gather, joined along dim 1; backward reduce_scatter of the gradient's t pieces along dim "
        "1. scatter is the same two the other way round, so write two little functions and use each of them twice. "
        "Pieces of a chunk along dim 1 are not contiguous.",
        "def gathered(x):\n"
        "    pieces = [torch.empty_like(x) for _ in range(t)]\n"
        "    dist.all_gather(pieces, x.contiguous())\n"
        "    return ...\n"
        "def summed(x):\n"
        "    pieces = [piece.contiguous() for piece in x.chunk(t, dim=1)]\n"
        "    own = torch.empty_like(pieces[0])\n"
        "    dist.reduce_scatter(own, pieces)\n"
        "    return own\n"
        "...  # two autograd.Functions, and their .apply",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, c, D) in ((3, (2, 2, 2)), (2, (1, 3, 2)), (1, (2, 2, 1)), (4, (2, 16, 64))):
            ranks = [{"x": normal(generator, B, c, D, scale=0.5), "w": normal(generator, B, t * c, D, scale=0.5),
                      "c": normal(generator, B, c, D)} for _ in range(t)]
            made.append(Trial(ranks, f"{ranks_of(t)}, {amount(8 * B * c * D)} of tokens on each"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        x, w = (inputs[name].clone().requires_grad_() for name in ("x", "w"))
        answer: dict[str, Any] = dict.fromkeys(NAMES)

        def there_and_back() -> None:
            pair = function()
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
                answer["gathered"] = f"not two functions but {describe(plain(pair))}"
                return
            whole = pair[0](x)
            answer["gathered"] = plain(whole)
            if not isinstance(whole, Tensor) or whole.shape != w.shape:
                return
            own = pair[1](torch.exp(w * whole))
            answer["scattered"] = plain(own)
            if isinstance(own, Tensor) and own.requires_grad and own.shape == x.shape:
                own.backward(inputs["c"].clone())
            answer["w"], answer["x"] = plain(w.grad), plain(x.grad)

        _, calls = count_calls(there_and_back)
        return {**answer, "calls": calls}

    def expected(self, inputs: Inputs) -> Answers:
        return there(inputs, gather, scatter)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t, right = len(inputs), self.expected(inputs)
        yield ("forward is right, but backward of gather takes this rank's piece of this rank's gradient alone: all "
               "ranks have used these tokens, so the gradients are added up, a reduce-scatter",
               there(inputs, gather_own_gradient, scatter))
        yield ("forward is right, but backward of scatter fills the other ranks' tokens with zeros: h went into all "
               "pieces of the sum, so their gradients are gathered", there(inputs, gather, scatter_own_gradient))
        for given in (lambda value, s: value, with_gradient_of):
            yield ("scatter cuts out this rank's piece and adds nothing up: what comes in is a summand on every rank",
                   there(inputs, gather, lambda hs, given=given: [
                       given(h.chunk(t, 1)[r], s) for r, (h, s) in enumerate(zip(hs, scatter(hs)))]))
            yield ("scatter makes the mean: the ranks' results are summands, so nothing is divided",
                   there(inputs, gather, lambda hs, given=given: [given(s / t, s) for s in scatter(hs)]))
        yield ("backward of gather makes the mean of the gradients: they are summands, so nothing is divided",
               [{**answer, "x": answer["x"] / t} for answer in right])
        yield ("every rank has rank 0's piece of the sum: rank r's tokens are the r-th piece",
               there(inputs, gather, lambda hs: [sum(hs).chunk(t, 1)[0] for _ in hs]))
        stacked = torch.cat([rank["x"] for rank in inputs])
        yield ("the pieces are joined along dim 0, as further rows of the batch: tokens lie along dim 1",
               [{**dict.fromkeys(NAMES), "gathered": stacked} for _ in inputs])
        yield ("the results are right, but nothing leads back through them: return the .apply of an autograd.Function",
               [{**answer, "w": None, "x": None} for answer in right])

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 4, "gather and scatter send once forward and once backward")]

    def bound(self, trial: Trial) -> int:
        return 4 * (trial.world_size - 1) * trial.inputs[0]["x"].nbytes

    def waste(self, answers: list[Any]) -> str:
        return "a rank wants a piece of the sum only: reduce_scatter sends half of what all_reduce does"


def gather(xs: Tensors) -> Tensors:
    """The whole row on each rank; autograd adds the ranks' gradients up and cuts them."""
    whole = torch.cat(xs, 1)
    return [whole.clone() for _ in xs]


def scatter(hs: Tensors) -> Tensors:
    """Each rank's piece of the sum; autograd joins the gradients."""
    return list(sum(hs).chunk(len(hs), 1))


def with_gradient_of(value: Tensor, s: Tensor) -> Tensor:
    return value.detach() + s - s.detach()


def gather_own_gradient(xs: Tensors) -> Tensors:
    return [torch.cat([x if i == r else x.detach() for i, x in enumerate(xs)], 1) for r in range(len(xs))]


def scatter_own_gradient(hs: Tensors) -> Tensors:
    total = sum(h.detach() for h in hs)
    return [(total - h.detach() + h).chunk(len(hs), 1)[r] for r, h in enumerate(hs)]


def there(inputs: Inputs, first: Callable[[Tensors], Tensors], second: Callable[[Tensors], Tensors]) -> Answers:
    """What the ranks answer with these for gather and scatter."""
    xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
    wholes = first(xs)
    pieces = second([torch.exp(w * whole) for w, whole in zip(ws, wholes)])
    sum((rank["c"] * piece).sum() for rank, piece in zip(inputs, pieces)).backward()
    return [{"gathered": plain(whole), "scattered": plain(piece), "w": plain(w.grad), "x": plain(x.grad)}
            for whole, piece, w, x in zip(wholes, pieces, ws, xs)]
