"""Exercise 7.7, open-ended: causal attention, forward and backward, on tokens of which each rank has an R-th.

    R  ranks, r this one      q, k, v (B, H, c, d), c = T/R: this rank's tokens      P = 8 B H c d  bytes of one of them
    positions  where each rank's tokens stand in the row; a token reads those at its own position and before

However it is written, bytes and memory count: M = 2 P goes around once forward, and backward again with its gradients.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.split import (
    Leaves,
    SplitExercise,
    Tensors,
    forth_and_back,
    normal,
    played,
)
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount, most

Answers = list[dict[str, Any]]
Inputs = list[dict[str, Any]]
PARTS, SCORES = 20, 5  # of P, and of a block's scores: what a rank may hold, with its arguments and their gradients


class WholeRing(SplitExercise):
    number = "7.7"
    function = "my_whole_ring"
    points = 6
    right = "attention and all its gradients are right"
    budget = ("par: 3(R-1) M sent by each rank, M its keys and values; 20 times q and 5 times one block's scores held, "
              "arguments and gradients included")
    hints = (
        "Which two things does backward have to know of the whole row, so that it can compute a block's weights by "
        "itself? Neither is larger than the result.",
        "Save q, k, v, out and lse. Backward, keys and values go around again: a block's weights are exp(scores - "
        "lse), and the gradient of its scores is weights * (dy v^T - delta), delta the sum of dy * out over d. The "
        "gradient of a block starts at the first other rank that uses it and travels behind it: R - 1 messages, and "
        "the last one takes it home.",
        "# forward, for each block:\n"
        "new = torch.logaddexp(lse, scores.logsumexp(-1, keepdim=True))\n"
        "out = out * (lse - new).exp() + (scores - new).exp() @ v\n"
        "# backward, for each block:\n"
        "weights = (scores - lse).exp()\n"
        "d_scores = weights * (dy @ v.mT - delta) * scale\n"
        "dq += d_scores @ k\n"
        "d_block = torch.stack([d_scores.mT @ q, ...])\n"
        "# step 0: keep it; later: add what arrives, and send it on",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for R, (B, H, c, d) in ((3, (1, 2, 4, 2)), (2, (2, 1, 4, 3)), (1, (1, 1, 4, 2)), (4, (1, 2, 64, 16))):
            pieces = torch.arange(R * c).chunk(2 * R)
            positions = [torch.cat([pieces[r], pieces[2 * R - 1 - r]]) for r in range(R)]
            ranks = [{"given": {name: normal(generator, B, H, c, d) for name in "qkv"}, "positions": positions,
                      "dy": normal(generator, B, H, c, d)} for _ in range(R)]
            made.append(Trial(ranks, f"{ranks_of(R)}, {R * c} tokens, keys and values of {amount(16 * B * H * c * d)} "
                                     "on each"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        from course_lib.runtime import record_memory

        positions = [each.clone() for each in inputs["positions"]]
        with record_memory() as log:
            before = log.current
            answer = forth_and_back(inputs, lambda leaves: function(*leaves.values(), positions))
        return {**answer, "held": log.peak - before}

    def expected(self, inputs: Inputs) -> Answers:
        return played(inputs, lambda all: attended(all, inputs[0]["positions"]))

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, Answers]]:
        R, positions, right = len(inputs), inputs[0]["positions"], self.expected(inputs)
        c = len(positions[0])

        def variant(cause: str, places: Any = positions, **changes: Any) -> tuple[str, Answers]:
            return cause, played(inputs, lambda all: attended(all, places, **changes))

        yield variant("each rank attends to its own keys only: those of all ranks have to come by", own_keys=True)
        yield variant("nothing is masked: a token reads those at its own position and before", visible=every)
        yield variant("a token does not read itself: hide positions that are larger, not those that are equal",
                      visible=torch.gt)
        yield variant("the mask takes the ranks' tokens for contiguous pieces of the row: compare `positions`, of the "
                      "rank that the block came from", list(torch.arange(R * c).chunk(R)))
        yield variant("every block is masked like this rank's own: compare with `positions` of the rank that it came "
                      "from", [torch.arange(c)] * R)
        yield variant("scores are not divided by the root of d", scale=1.0)
        yield variant("the blocks' results are added up as they are: each is a mean over its own keys, and weighs "
                      "exp(lse of the block - lse of all)", merge=added)
        yield variant("forward is right, but the gradients of k and v are this rank's part: those of the other ranks, "
                      "which used this block too, have to come home", stays="kv")
        yield variant("forward is right, but the gradient of q knows this rank's own keys only", stays="q")
        yield ("forward is right, but the gradients of k and v are another rank's: what goes behind a block has to "
               "arrive where the block came from", at_rank(right, 1))
        yield ("forward is right, but the gradients of k and v are another rank's: one message too many, or the wrong "
               "way round", at_rank(right, -1))
        yield variant("forward is right, but in backward nothing is subtracted from dy v^T: the gradient of softmax is "
                      "weights * (dy v^T - delta), delta the sum of dy * out over d", delta=False)

    def bound(self, trial: Trial) -> int:
        return 3 * (trial.world_size - 1) * 2 * trial.inputs[0]["dy"].nbytes

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held, dy = [answer["held"] for answer in answers], trial.inputs[0]["dy"]
        B, H, c, _ = dy.shape
        return [Spent("holds", max(held), PARTS * dy.nbytes + SCORES * 8 * B * H * c * c, rank=most(held),
                      slack=4096 + dy.nbytes, claimed=True,
                      why="the scores of one block at a time, and in backward compute them again from lse: neither all "
                          "keys nor what autograd keeps of each block fits")]

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        return [replace(each, limit="par {}") for each in super().spent(trial, answers, traffic)]

    def waste(self, answers: list[Any]) -> str:
        return ("keys and values go around once in each direction of time, R - 1 messages, and the gradient of a block "
                "from the first other rank that uses it home, R - 1 more")


def every(own: Tensor, keys: Tensor) -> Tensor:
    return torch.ones_like(own >= keys)


def added(scores: Tensor, R: int) -> Tensor:
    """Weights whose softmax is of each block by itself; 0 where a block is hidden altogether."""
    return torch.cat([block.softmax(-1).nan_to_num(0.0) for block in scores.chunk(R, -1)], -1)


def attended(ranks: list[Leaves], positions: Tensors, own_keys: bool = False, visible: Callable = torch.ge,
             scale: float | None = None, merge: Callable | None = None, stays: str = "", delta: bool = True) -> Tensors:
    """Each rank's attention to everybody's keys; arguments but the first two are mistakes.

    stays: where gradients do not travel, "kv" or "q".
    """
    R, results = len(ranks), []
    for r, own in enumerate(ranks):
        q = own["q"]
        sources = range(r, r + 1) if own_keys else range(R)

        def of(name: str, r: int = r, sources: range = sources) -> Tensor:
            return torch.cat([ranks[s][name].detach() if stays == "kv" and s != r else ranks[s][name]
                              for s in sources], 2)

        def scored(q: Tensor, k: Tensor) -> Tensor:
            return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)

        k, v = of("k"), of("v")
        scores = scored(q, k)
        if stays == "q":
            local = torch.cat([torch.full_like(positions[s], s == r) for s in sources]).bool()
            scores = torch.where(local, scores, scored(q.detach(), k))
        seen = visible(positions[r][:, None], torch.cat([positions[s] for s in sources]))
        scores = scores.masked_fill(~seen, float("-inf"))
        weights = (merge(scores, R) if merge else scores.softmax(-1)).nan_to_num(0.0)
        if not delta:  # the same numbers, with weights * (what comes back) as their gradient
            with_gradient = torch.where(seen, scores, 0.0) * weights.detach()
            weights = weights.detach() + with_gradient - with_gradient.detach()
        results.append(weights @ v)
    return results


def at_rank(answers: Answers, shift: int) -> Answers:
    """The gradients of k and v, on another rank each."""
    R = len(answers)
    return [{**answer, "gradients": {name: answers[(r + shift) % R if name in "kv" else r]["gradients"][name]
                                     for name in "qkv"}} for r, answer in enumerate(answers)]
