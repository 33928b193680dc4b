"""Exercise 5.7, open-ended: a whole block, forward and backward, of which each rank has a t-th of every matrix.

    t  ranks    x (B, T, D), the same on all    d  numbers of a head    norms, output.bias, down.bias  on all ranks

However it is written, what counts are the bytes: par is four all-reduces of B T D numbers. Slices of the weights, and
not whole ones, lie on the ranks, so that nobody can compute everything alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
)
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount

Answers = list[dict[str, Any]]
Inputs = list[dict[str, Any]]
BRANCHES = ("attention", "mlp")
ROW_BIASES = ("output.bias", "down.bias")


class SplitBlock(SplitExercise):
    number = "5.7"
    function = "my_split_block"
    points = 5
    right = "the block and all its gradients are right"
    budget = "par: what four all-reduces of B T D numbers send, 4 * 2(t-1)/t * 8 B T D bytes by each rank"
    hints = (
        "Two branches, each the same sandwich: something that all ranks have, a matrix by columns, something on this "
        "rank's own heads or features, a matrix by rows, the sum. Where does a branch begin to be different on the "
        "ranks, and where does it end?",
        "f stands behind the norm: before it everything is the same on all ranks, gradients too. q, k and v read one "
        "copy. g stands behind the row matrix, without its bias. Bias and residual are added to the sum.",
        "f, g = my_f_and_g()\n"
        "q, k, v = F.linear(f(norm(x, 'norm_1')), weights['qkv.weight'], weights['qkv.bias']).chunk(3, dim=-1)\n"
        "heads = attention(q, k, v, head_dim)\n"
        "x = x + g(...) + weights['output.bias']\n"
        "hidden = ...  # f behind norm_2, up, gelu\n"
        "return x + ... + ...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, T, heads, d) in ((3, (1, 3, 2, 2)), (2, (2, 4, 1, 3)), (1, (1, 3, 2, 2)), (4, (1, 32, 2, 8))):
            D = t * heads * d
            x, dy = normal(generator, B, T, D), normal(generator, B, T, D)
            shared, slices = weights_of(generator, t, D)
            ranks = [{"given": {"x": x, **shared, **own}, "dy": dy, "head_dim": d} for own in slices]
            made.append(Trial(ranks, f"{ranks_of(t)}, {t * heads} heads, x of {amount(x.nbytes)}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        def call(leaves: Leaves) -> Any:
            return function(leaves["x"], {name: leaf for name, leaf in leaves.items() if name != "x"},
                            inputs["head_dim"])

        return forth_and_back(inputs, call)

    def expected(self, inputs: Inputs) -> Answers:
        return played(inputs, lambda all: block(all, inputs[0]["head_dim"]))

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t, d = len(inputs), inputs[0]["head_dim"]

        def variant(cause: str, **changes: Any) -> tuple[str, Answers]:
            return cause, played(inputs, lambda all: block(all, d, **changes))

        for where, words in ((BRANCHES, "both branches"), (("attention",), "attention"), (("mlp",), "the MLP")):
            yield variant(f"forward is right, but in {words} nobody adds up the gradient of what the column matrix "
                          "reads, so x and norms have a part of theirs: f behind the norm",
                          copies=dict.fromkeys(where, nothing))
            yield variant(f"forward is right, and so is the gradient of x, but in {words} f stands before the norm, "
                          "whose own gradients are then each rank's part: f behind the norm", f_first=where)
            yield variant(f"in {words} the bias of the row matrix is added t times: add it to the sum, behind g",
                          bias_inside=dict.fromkeys(where, 1))
            yield variant(f"forward is right, but in {words} the row's bias is divided by t before the sum, and so is "
                          "its gradient: add it to the sum, behind g", bias_inside=dict.fromkeys(where, 1 / t))
            yield variant(f"in {words} the residual is inside the sum, so it counts t times: add it behind g",
                          residual_inside=where)
            yield variant(f"in {words} the gradients are added up behind the row matrix as well: every rank has the "
                          "whole gradient of the sum already, so backward of g is a copy",
                          adds=dict.fromkeys(where, both_add))
            yield variant(f"in {words} nobody adds up in forward: what a rank computes there is a summand",
                          adds=dict.fromkeys(where, nothing))
            yield variant(f"in {words} the bias of the row matrix is missing",
                          bias_inside=dict.fromkeys(where, 0))
        yield variant("tokens see what comes after them: attention is causal", causal=False)
        yield variant("all of this rank's heads are taken for one: a head has head_dim numbers, and its own softmax",
                      one_head=True)
        yield variant("q, k and v are in another order: the rows of qkv.weight are q, then k, then v", order=(1, 0, 2))
        yield variant("attention divides by the root of this rank's width: a head has head_dim numbers", scale_all=True)
        yield variant("the norms are missing", norms=False)

    def bound(self, trial: Trial) -> int:
        return 4 * all_reduce_bytes(trial, trial.inputs[0]["dy"].numel())

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        return [replace(each, limit="par {}") for each in super().spent(trial, answers, traffic)]

    def waste(self, answers: list[Any]) -> str:
        if len(answers[0]["calls"]) > 4:
            return (f"it took {len(answers[0]['calls'])} calls. One f for q, k and v together, and one g behind each "
                    "row matrix: a branch has one all-reduce in each direction")
        return "send B T D numbers, behind the row matrix and in backward before the norm, not what lies between"


def weights_of(generator: torch.Generator, t: int, D: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """What all ranks have, and the slices of each."""
    own = {"qkv.weight": (3 * D // t, D), "qkv.bias": (3 * D // t,), "output.weight": (D, D // t),
           "up.weight": (4 * D // t, D), "up.bias": (4 * D // t,), "down.weight": (D, 4 * D // t)}
    shared = {f"norm_{i}.{name}": normal(generator, D, scale=0.2) + (name == "weight") for i in (1, 2)
              for name in ("weight", "bias")}
    shared |= {name: normal(generator, D) for name in ROW_BIASES}
    return shared, [{name: normal(generator, *shape, scale=shape[-1] ** -0.5) for name, shape in own.items()}
                    for _ in range(t)]


def block(ranks: list[Leaves], d: int, copies: dict[str, Callable] | None = None,
          adds: dict[str, Callable] | None = None, f_first: Sequence[str] = (),
          bias_inside: dict[str, float] | None = None, residual_inside: Sequence[str] = (), norms: bool = True,
          **attended: Any) -> Tensors:
    """What each rank's block returns; arguments but the first two are mistakes, named by branch.

    bias_inside: each rank adds so much of the row's bias to its summand.
    """
    copies, adds, bias_inside = copies or {}, adds or {}, bias_inside or {}
    xs = [own["x"] for own in ranks]
    for branch, norm, column, row in (("attention", "norm_1", "qkv", "output"), ("mlp", "norm_2", "up", "down")):
        copy, add = copies.get(branch, f), adds.get(branch, g)
        sources = copy(xs) if branch in f_first else xs
        inputs = [normed(x, own, norm) if norms else x for x, own in zip(sources, ranks)]
        if branch not in f_first:
            inputs = copy(inputs)
        summands = []
        for x, source, own in zip(inputs, xs, ranks):
            hidden = F.linear(x, own[f"{column}.weight"], own[f"{column}.bias"])
            hidden = attention(hidden, d, **attended) if branch == "attention" else F.gelu(hidden)
            summand = F.linear(hidden, own[f"{row}.weight"])
            if bias_inside.get(branch):
                summand = summand + bias_inside[branch] * own[f"{row}.bias"]
            summands.append(summand + source if branch in residual_inside else summand)
        ys = add(summands)
        if branch not in bias_inside:
            ys = [y + own[f"{row}.bias"] for y, own in zip(ys, ranks)]
        xs = ys if branch in residual_inside else [x + y for x, y in zip(xs, ys)]
    return xs


def normed(x: Tensor, own: Leaves, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], own[f"{name}.weight"], own[f"{name}.bias"])


def attention(qkv: Tensor, d: int, causal: bool = True, one_head: bool = False, order: tuple[int, ...] = (0, 1, 2),
              scale_all: bool = False) -> Tensor:
    """Of this rank's heads: (B, T, 3 D/t) -> (B, T, D/t)."""
    own = qkv.shape[-1] // 3
    parts = [part.unflatten(-1, (-1, own if one_head else d)).transpose(1, 2) for part in qkv.chunk(3, dim=-1)]
    q, k, v = (parts[i] for i in order)  # (B, H/t, T, d)
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=own**-0.5 if scale_all else None)
    return heads.transpose(1, 2).flatten(2)
