"""Exercise 9.4: one norm of gradients of which every rank of a mesh has some, some of them the same.

    |g|_p = (sum over all numbers of |x|^p)^(1/p),  |g|_inf = the largest |x|
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls, num_calls
from course_lib.grading.chapters.hybrid_parallel.mesh import Sizes, named, words_for
from course_lib.grading.chapters.hybrid_parallel.pieces import KINDS, Gradients, held_by, places, slice_of
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import normal
from course_lib.grading.compare import part
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
Table = dict[str, tuple[str, ...]]  # kind -> axes along which all ranks have the same
COPIES: Table = {"split": ("dp", "cp"), "replicated": ("dp", "cp", "tp"), "partial": ("dp", "cp", "tp"),
                 "tied": ("dp", "cp", "pp"), "expert": ("edp", "tp")}
DEALT = ("dp", "cp", "edp")  # no copies along them under ZeRO
LARGEST = 9.0  # stands out in the norm inf


class GlobalNorm(CollectiveExercise):
    number = "9.4"
    function = "my_global_norm"
    points = 3
    tolerance = ROUNDING
    compared = "norm"
    right = "the norm is right"
    budget = "one all-reduce of one number"
    hints = (
        "Every number of the gradient may count once. Of ranks that have the same one has to count it: which one can "
        "say so of itself, without asking the others?",
        "A rank counts a piece where its coordinate is 0 along every axis on which the piece has copies. These axes "
        "depend on the kind; under ZeRO dp, cp and edp are not among them. Powers add up, the root comes last; for inf "
        "it is the maximum, over the ranks by dist.ReduceOp.MAX. A rank may have nothing to count.",
        "copies = {\"split\": {\"dp\", \"cp\"}, \"replicated\": ..., ..., \"expert\": {\"edp\", ...}}\n"
        "dealt = {\"dp\", \"cp\", \"edp\"} if zero else set()\n"
        "own = [gradient.abs().flatten() for name, gradient in gradients.items()\n"
        "       if not any(coordinates[axis] for axis in ... - dealt)]\n"
        "own = torch.cat([torch.zeros(1, dtype=torch.float64), *own])  # never empty\n"
        "if norm_type == math.inf:\n"
        "    total = own.max()\n"
        "    dist.all_reduce(total, ...)\n"
        "    return total.item()\n"
        "...",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for sizes, norm_type, zero in (
                (named(dp=2, tp=2), 2.0, False), (named(pp=2, tp=2), 2.0, False),
                ({**named(dp=2, cp=2), "ep": 2}, 2.0, False), (named(dp=2, tp=2), math.inf, False),
                (named(dp=2, tp=2), 2.0, True), ({**named(dp=2, cp=2), "ep": 2}, math.inf, True),
                (named(dp=3), 1.0, False), (named(), 3.0, False), ({**named(dp=2, pp=2, tp=2), "ep": 2}, 2.0, True)):
            sizes = {**sizes, "ep": sizes.get("ep", 1)}
            ranks = pieces_of(whole_gradient(generator, sizes["ep"]), sizes, zero)
            label = f"{ranks_of(len(ranks))}, {words_for(sizes)}{' under ZeRO' * zero}, norm {norm_type:g}"
            made.append(Trial([{**rank, "norm_type": norm_type, "zero": zero} for rank in ranks], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        arguments = ({name: gradient.clone() for name, gradient in inputs["gradients"].items()}, dict(inputs["kinds"]),
                     dict(inputs["coordinates"]), inputs["norm_type"], inputs["zero"])
        returned, calls = count_calls(function, *arguments)
        norm = returned.item() if isinstance(returned, Tensor) and returned.numel() == 1 else returned
        known = isinstance(norm, int | float) and not isinstance(norm, bool)
        return {"norm": float(norm) if known else f"a {type(norm).__name__}", "calls": calls}

    def given(self, answers: list[Any]) -> list[Any]:
        return [part(answer, "norm") for answer in answers]

    def expected(self, inputs: Inputs) -> list[float]:
        return [norm_of(counted(inputs, COPIES), inputs[0]["norm_type"])] * len(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[float]]]:
        n, p, zero = len(inputs), inputs[0]["norm_type"], inputs[0]["zero"]
        right, everything = counted(inputs, COPIES), counted(inputs, {})

        def everywhere(each: list[list[Tensor]]) -> list[float]:
            return [norm_of(each, p)] * n

        yield ("everything counts on every rank: copies count as often as there are", everywhere(everything))
        if zero:
            yield ("pieces of dp and cp are taken for copies: under ZeRO every rank has another one, and rank 0's are "
                   "not all", everywhere(counted(inputs, COPIES, False)))
        for expert in (("edp",), ("edp", "tp")):
            yield ("what the ranks of tp have in common counts tp times: `replicated` and `partial` are copies there, "
                   "and one rank's count",
                   everywhere(counted(inputs, {**COPIES, "replicated": ("dp", "cp"), "partial": ("dp", "cp"),
                                               "expert": expert})))
        for kind in ("replicated", "partial"):
            yield (f"`{kind}` counts tp times: behind the reduction all ranks of tp have the same",
                   everywhere(counted(inputs, {**COPIES, kind: ("dp", "cp")})))
        yield ("the tied embedding counts twice: it is one weight that lies on two stages",
               everywhere(counted(inputs, {**COPIES, "tied": ("dp", "cp")})))
        yield ("experts are taken for copies over dp and cp: the ranks of ep have different ones, and all of them "
               "count", everywhere(counted(inputs, {**COPIES, "expert": ("dp", "cp", "tp")})))
        yield ("experts count as often as edp has ranks, which have the same ones",
               everywhere(counted(inputs, {**COPIES, "expert": ("tp",)})))
        yield ("experts count tp times: all ranks of tp have the same ones",
               everywhere(counted(inputs, {**COPIES, "expert": ("edp",)})))
        yield ("slices are taken for copies: every rank of tp has another part of the matrix, and all of them count",
               everywhere(counted(inputs, {**COPIES, "split": ("dp", "cp", "tp"), "tied": ("dp", "cp", "tp", "pp")})))
        yield ("every rank has the norm of what it counts: an all-reduce makes one of them all",
               [norm_of([own], p) for own in right])
        yield ("every rank has the norm of what lies on it: an all-reduce makes one of them all",
               [norm_of([own], p) for own in everything])
        if p == math.inf:
            yield ("the ranks' largest numbers are added up: for inf the all-reduce is dist.ReduceOp.MAX",
                   [sum(norm_of([own], p) for own in right)] * n)
            yield ("the largest number is taken with its sign: the largest |x| is asked",
                   [max((piece.max().item() for own in right for piece in own if piece.numel()), default=0.0)] * n)
        else:
            yield "the root is not taken", [norm_of(right, p) ** p] * n
            yield ("the ranks' norms are added up: powers add up, norms do not, so take the root after the all-reduce",
                   [sum(norm_of([own], p) for own in right)] * n)
            yield ("the powers are averaged over the ranks: they are parts of one sum",
                   [norm_of(right, p) / n ** (1 / p)] * n)
            yield "norm_type is not looked at: this is the norm 2", [norm_of(right, 2.0)] * n
            yield "x is taken with its sign: |x| to the power is asked", [
                abs(sum((piece ** p).sum().item() for own in right for piece in own)) ** (1 / p)] * n

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1, "add up all own pieces first")]

    def bound(self, trial: Trial) -> int:
        return 16

    def waste(self, answers: list[Any]) -> str:
        return "send one number, not the pieces"


def whole_gradient(generator: torch.Generator, num_experts: int) -> Gradients:
    D = 4
    shapes = {"embedding": (8, D), "up": (D, 2 * D), "down": (2 * D, D), "norm": (D,), "gate": (3,),
              "expert": (num_experts, D, D), "final_norm": (D,)}
    whole = {name: normal(generator, *shapes[name]) for name in KINDS}
    whole["expert"][-1, -1, -1] = -LARGEST  # of the last expert, where not every rank looks; and negative
    return whole


def pieces_of(whole: Gradients, sizes: Sizes, zero: bool) -> Inputs:
    """What each rank has of the gradient after its reduction."""
    ranks = []
    for where in places(sizes):
        kinds = held_by(where, sizes)
        own = {name: slice_of(name, whole[name], where, sizes) for name in kinds}
        if zero:
            own = {name: dealt(gradient, kinds[name], where, sizes) for name, gradient in own.items()}
        ranks.append({"gradients": {name: gradient.clone() for name, gradient in own.items()}, "kinds": kinds,
                      "coordinates": where})
    return ranks


def dealt(gradient: Tensor, kind: str, where: dict[str, int], sizes: Sizes) -> Tensor:
    """ZeRO's piece of it: flat, of as many as there are ranks with copies along dp and cp, or edp. It may be empty."""
    plane = sizes["dp"] * sizes["cp"]
    n, own = (plane // sizes["ep"], where["edp"]) if kind == "expert" else (
        plane, where["dp"] * sizes["cp"] + where["cp"])
    size = -(-gradient.numel() // n)
    return gradient.flatten()[own * size:(own + 1) * size]


def counted(inputs: Inputs, copies: Table, zero: bool | None = None) -> list[list[Tensor]]:
    """For each rank what it counts: the pieces of which it is the first among those with the same."""
    found = []
    for rank in inputs:
        without: Sequence[str] = DEALT if (rank["zero"] if zero is None else zero) else ()
        found.append([gradient for name, gradient in rank["gradients"].items()
                      if not any(rank["coordinates"][axis] for axis in copies.get(rank["kinds"][name], ())
                                 if axis not in without)])
    return found


def norm_of(each: Iterable[Iterable[Tensor]], p: float) -> float:
    pieces = [piece.abs() for own in each for piece in own if piece.numel()]
    if p == math.inf:
        return max((piece.max().item() for piece in pieces), default=0.0)
    return sum((piece ** p).sum().item() for piece in pieces) ** (1 / p)
