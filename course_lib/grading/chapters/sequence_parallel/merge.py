"""Exercise 7.2: attention whose keys lie on t ranks, put together from each rank's result and its log-sum.

    t  ranks      out (B, H, T, d), lse (B, H, T)  of the same queries, over this rank's keys; lse = -inf: it has none
    lse_all = log sum_r exp(lse_r)      out_all = sum_r exp(lse_r - lse_all) out_r
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls, num_calls
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import all_reduce_bytes, normal
from course_lib.grading.compare import part, plain, readable
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
Answers = list[dict[str, Any]]
NOT_A_NUMBER = ("the answer is not a number: exp of a large lse overflows, and a difference of two infinite ones is "
                "nan. Subtract the largest lse over all ranks, which is finite, before exp")


class MergedAttention(CollectiveExercise):
    number = "7.2"
    function = "my_merged_attention"
    points = 3
    tolerance = ROUNDING
    right = "out and lse are right"
    budget = "two all-reduces of B H T (d + 2) numbers together: 2(t-1)/t * 8 B H T (d+2) bytes sent by each rank"
    hints = (
        "A rank's result is a mean of its values, and weighs as much as all its exponentials together. How do you put "
        "means of groups together? And which number has to be known before anything may be put through exp?",
        "The largest lse over the ranks comes first, with dist.ReduceOp.MAX. Then exp(lse - largest) is this rank's "
        "weight, and two sums are needed: of weight * out, and of the weight. They fit into one message.",
        "highest = lse.clone()\n"
        "dist.all_reduce(highest, dist.ReduceOp.MAX)\n"
        "weight = ...  # (B, H, T, 1)\n"
        "sums = torch.cat([weight * out, weight], dim=-1)\n"
        "dist.all_reduce(sums)\n"
        "...  # divide, and add `highest` to the logarithm again",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, (B, H, T, d), shift in ((3, (1, 2, 3, 4), 0), (2, (2, 1, 3, 2), 900), (1, (1, 1, 2, 2), -900),
                                       (4, (2, 4, 64, 16), 5)):
            ranks = []
            for r in range(t):
                out, lse = normal(generator, B, H, T, d), normal(generator, B, H, T, scale=2.0) + shift
                if r:  # the first query reads keys of rank 0 only
                    out[:, :, 0], lse[:, :, 0] = 0.0, float("-inf")
                ranks.append({"out": out, "lse": lse})
            made.append(Trial(ranks, f"{ranks_of(t)}, {B * H * T} queries, lse about {shift}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        returned, calls = count_calls(function, inputs["out"].clone(), inputs["lse"].clone())
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            return {"out": "not two tensors", "lse": None, "calls": calls}
        return {"out": plain(returned[0]), "lse": plain(returned[1]), "calls": calls}

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in ("out", "lse")} for answer in answers]

    def expected(self, inputs: Inputs) -> Answers:
        return [merged(inputs)] * len(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        t, right = len(inputs), merged(inputs)
        outs, lses = (torch.stack([rank[name] for rank in inputs]) for name in ("out", "lse"))
        highest = lses.amax(0)
        weights = (lses - highest).exp()

        def all_ranks(out: Tensor, lse: Tensor = right["lse"]) -> Answers:
            return [{"out": out, "lse": lse}] * t

        yield ("the lse is right, but `out` is the plain mean of the ranks' results: a rank weighs exp(lse)",
               all_ranks(outs.mean(0)))
        yield ("the ranks' results are added up without weights: each is a mean over its own keys, and weighs "
               "exp(lse - lse of all)", all_ranks(outs.sum(0)))
        yield ("the weighted sum is not divided by the sum of the weights",
               all_ranks((weights[..., None] * outs).sum(0)))
        yield ("the largest lse was not added to the logarithm again: lse is smaller by it",
               all_ranks(right["out"], right["lse"] - highest))
        yield ("`out` is right, but lse is the largest of the ranks' lse: it is the logarithm of the sum of their "
               "exponentials", all_ranks(right["out"], highest))
        yield ("`out` is right, but lse is the sum of the ranks': exponentials add up, logarithms do not",
               all_ranks(right["out"], lses.sum(0)))
        yield ("each rank returns what it had: the other ranks' keys are missing",
               [{"out": rank["out"], "lse": rank["lse"]} for rank in inputs])
        yield ("each rank's own lse is returned beside the right `out`",
               [{"out": right["out"], "lse": rank["lse"]} for rank in inputs])
        share = torch.where(lses.isinf(), 0.0, lses)
        yield ("a rank weighs its lse: that is a logarithm, its weight is exp(lse)",
               all_ranks((share[..., None] * outs).sum(0) / share.sum(0)[..., None]))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        said = super().wrong(trial, answers)
        outs = [part(answer, name) for answer in answers for name in ("out", "lse")]
        infinite = any(readable(out) and out.is_floating_point() and out.isnan().any() for out in outs)
        return NOT_A_NUMBER if said and infinite else said

    def difference(self, given: list[Any], expected: Answers) -> str:
        return "out and lse of all keys are asked; " + super().difference(given, expected)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2, "one for the maximum, and one for both sums together")]

    def bound(self, trial: Trial) -> int:
        own = trial.inputs[0]
        return all_reduce_bytes(trial, own["out"].numel() + 2 * own["lse"].numel())

    def waste(self, answers: list[Any]) -> str:
        return "add up on the way, instead of gathering what all ranks have"


def merged(inputs: Inputs) -> dict[str, Tensor]:
    lses = torch.stack([rank["lse"] for rank in inputs])
    lse = lses.logsumexp(0)
    out = sum((own - lse).exp()[..., None] * rank["out"] for own, rank in zip(lses, inputs))
    return {"out": out, "lse": lse}
