"""Exercise 5.6: the norm of a model's gradient, where slices add up, copies count once, and parts are added first.

    t  ranks      sliced  of what each rank has a slice      whole  the same on all ranks
    partial  of what all ranks have, but each has seen its own tokens only: the gradient is the sum of these
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls, num_calls
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import all_reduce_bytes, normal
from course_lib.grading.compare import part, plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent, amount

KINDS = ("sliced", "whole", "partial")
Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]


class GradientNorm(CollectiveExercise):
    number = "5.6"
    function = "my_gradient_norm"
    points = 3
    tolerance = ROUNDING
    words = "has"
    right = "norm and gradients are right"
    budget = "two all-reduces: one of all `partial` gradients together, one of a single number"
    hints = (
        "Three kinds of gradient: of slices each rank knows other elements; of copies all ranks know the same; and of "
        "parts nobody knows the gradient yet. Which of them have to be added up over the ranks, and before or after "
        "the squares?",
        "First the parts: torch.cat of all of them, flattened, one all-reduce, and every stretch back into its "
        "gradient. From then on they are like copies. Then the squares of the slices, one number, are added up over "
        "the ranks; those of the copies are added once, on each rank by itself. The root comes last.",
        "flat = torch.cat([gradient.flatten() for gradient in partial])\n"
        "dist.all_reduce(flat)\n"
        "for gradient, total in zip(partial, flat.split([gradient.numel() for gradient in partial])):\n"
        "    gradient.copy_(...)\n"
        "square = ...  # of the slices\n"
        "dist.all_reduce(square)\n"
        "...  # and of the others, once",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, size in ((3, 2), (2, 3), (1, 2), (4, 1 << 10)):
            shapes = {"sliced": [(4, 3), (5,)], "whole": [(4,), (2, 2)], "partial": [(2 * size,), (size, 3)]}
            whole = [normal(generator, *shape) for shape in shapes["whole"]]
            ranks = [{"whole": whole, **{kind: [normal(generator, *shape) for shape in shapes[kind]]
                                         for kind in ("sliced", "partial")}} for _ in range(t)]
            made.append(Trial(ranks, f"{ranks_of(t)}, {amount(8 * 5 * size)} of parts"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        gradients = {kind: [gradient.clone() for gradient in inputs[kind]] for kind in KINDS}
        returned, calls = count_calls(function, *gradients.values())
        norm = returned.item() if isinstance(returned, Tensor) and returned.numel() == 1 else returned
        known = isinstance(norm, int | float) and not isinstance(norm, bool)
        return {"norm": float(norm) if known else f"no number but {type(norm).__name__}", "calls": calls,
                **{kind: [plain(gradient) for gradient in gradients[kind]] for kind in KINDS}}

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in ("norm", *KINDS)} for answer in answers]

    def expected(self, inputs: Inputs) -> Answers:
        sliced, totals = squares(inputs, "sliced"), added(inputs, "partial")
        norm = (sum(sliced) + square(inputs[0]["whole"]) + square(totals)) ** 0.5
        return [{"norm": norm, **rank, "partial": totals} for rank in inputs]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t, right = len(inputs), self.expected(inputs)
        totals, whole = right[0]["partial"], square(inputs[0]["whole"])
        sliced, parts, all_parts = squares(inputs, "sliced"), squares(inputs, "partial"), square(totals)

        def norms(*each: float, partial: bool = True) -> Answers:
            return [{"norm": each[r % len(each)], **rank, "partial": totals if partial else rank["partial"]}
                    for r, rank in enumerate(inputs)]

        everything = sum(sliced) + t * whole
        yield ("what is whole counts t times: all ranks have the same copy of it, so its squares are not added up over "
               "the ranks", norms((everything + all_parts) ** 0.5))
        yield ("what all ranks have counts t times, `whole` and, once it is added up, `partial`: only the squares of "
               "slices are added up over the ranks", norms((everything + t * all_parts) ** 0.5))
        yield ("the parts count t times: once they are added up all ranks have the same, so their squares are not "
               "added up over the ranks", norms((sum(sliced) + whole + t * all_parts) ** 0.5))
        for again in (True, False):
            yield ("the squares of the parts are added up: the gradient is the sum of the parts, so first the sum, and "
                   "then its square", norms((sum(sliced) + whole + sum(parts)) ** 0.5, partial=again))
            yield ("the squares of the parts are added up, and what is whole counts t times: first the sum of the "
                   "parts, then its square; and copies count once",
                   norms((everything + sum(parts)) ** 0.5, partial=again))
        yield ("each rank has the norm of its own slices: the squares of the others' have to be added",
               norms(*[(own + whole + all_parts) ** 0.5 for own in sliced]))
        yield ("each rank has the norm of what lies on it, and nobody sends anything: slices and parts of the others "
               "are missing", norms(*[(own + whole + mine) ** 0.5 for own, mine in zip(sliced, parts)], partial=False))
        yield ("the norm is right, but `partial` is as it was: every rank steps with its part of these gradients, and "
               "the copies part. Write the sums into them", norms(right[0]["norm"], partial=False))
        yield "the root is not taken", norms(right[0]["norm"] ** 2)
        yield ("the norms of the slices are added up: squares add up, norms do not",
               norms((sum(own**0.5 for own in sliced) ** 2 + whole + all_parts) ** 0.5))
        yield ("`whole` was added up over the ranks, though all have the whole gradient already: it is t times too "
               "large now", [{**answer, "whole": [t * gradient for gradient in rank["whole"]],
                              "norm": (sum(sliced) + t * t * whole + all_parts) ** 0.5}
                             for answer, rank in zip(right, inputs)])
        yield ("`partial` was averaged: every rank has seen other tokens of the same batch, so the parts add up",
               [{**answer, "partial": [gradient / t for gradient in totals],
                 "norm": (sum(sliced) + whole + all_parts / t**2) ** 0.5} for answer in right])

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2, "all parts travel as one tensor, and all squares as one number")]

    def bound(self, trial: Trial) -> int:
        return all_reduce_bytes(trial, 1 + sum(part.numel() for part in trial.inputs[0]["partial"]))

    def waste(self, answers: list[Any]) -> str:
        return "of slices and copies only the sum of the squares has to travel, if anything"


def square(gradients: list[Tensor]) -> float:
    return sum(gradient.square().sum().item() for gradient in gradients)


def squares(inputs: Inputs, kind: str) -> list[float]:
    """Of each rank."""
    return [square(rank[kind]) for rank in inputs]


def added(inputs: Inputs, kind: str) -> list[Tensor]:
    return [sum(gradients) for gradients in zip(*(rank[kind] for rank in inputs))]
