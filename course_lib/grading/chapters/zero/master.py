"""Exercise 6.5: weights of 16 bits that do not forget small updates, because a piece of 32 bits lies beneath."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.models import counted
from course_lib.grading.chapters.zero.shards import sent_too_much
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.tensors import amount, described, plain

STEPS, LR = 60, 1e-3  # an update is at most a thousandth of its weight: lost in bf16, where 1.0 is followed by 1.0078
MASTER_NEAR, WEIGHT_NEAR = 1e-3, 1e-2  # relative: bf16 gradients may be rounded the other way, weights by one step


def gradient_of(weights: Tensor) -> Tensor:
    """(N,) bf16: that of half the sum of squares."""
    return weights.clone()


class MasterSteps(Exercise):
    number = "6.5"
    function = "my_master_steps"
    points = 3
    budget = "4 N/n bytes of master weights on each rank; (n-1)/n 2N bytes sent by each rank a step: two for a weight"
    hints = (
        "A weight in bf16 has 8 significant bits: 1 + 0.001 is 1. Something of 32 bits has to remember what one step "
        "adds, from step to step; bf16 is only what it looks like to the others.",
        "master = weights.chunk(n)[r].float(), once; in each step master -= lr * "
        "mean_gradient(weights).chunk(n)[r].float(), then dist.all_gather(list(weights.chunk(n)), master.bfloat16()).",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, N in ((2, 8), (1, 4), (4, 16_384)):
            weights = (1 + torch.rand(N, generator=generator)).bfloat16()
            made.append(Trial([{"weights": weights.clone()} for _ in range(n)],
                              f"{n} rank{'s' * (n > 1)}, {N:,} weights in bf16, {STEPS} steps"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs["weights"].clone()
        master, calls = counted(function, weights, gradient_of, STEPS, LR)
        return {"weights": plain(weights), "master": plain(master), "calls": calls}

    @staticmethod
    def expected(inputs: list[dict[str, Any]]) -> Tensor:
        """The master weights of all ranks together, (N,) fp32."""
        master = inputs[0]["weights"].float()
        for _ in range(STEPS):
            master -= LR * gradient_of(master.bfloat16()).float()
        return master

    def mistakes(self, inputs: list[dict[str, Any]]) -> Iterable[tuple[str, list[Tensor]]]:
        """Likely mistakes: the cause, and the weights that each rank has then."""
        before, n = inputs[0]["weights"], len(inputs)
        master = self.expected(inputs)
        yield ("the weights are where they were: each update is smaller than half the distance to the next number that "
               "bf16 has. Something of 32 bits must remember it from one step to the next: make the master weights "
               "once, before the loop, and never anew from the weights", [before] * n)
        after = [piece.bfloat16() for piece in master.chunk(n)]
        yield ("every rank has stepped its own piece only: the others' pieces are as old as in the beginning, so "
               "all-gather after each step", [torch.cat([after[q] if q == r else piece
                                                         for q, piece in enumerate(before.chunk(n))])
                                              for r in range(n)])
        yield "every piece is rank 0's: rank r steps the piece with index r", [torch.cat(after[:1] * n)] * n

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        master, n = self.expected(trial.inputs), trial.world_size
        given = [answer["weights"] for answer in answers]
        if not all(near(weights, master.bfloat16(), WEIGHT_NEAR) for weights in given):
            return f"{trial.label}: {self.cause(trial, answers, master)}"
        for rank, answer in enumerate(answers):
            told = wrong_master(answer["master"], master, rank, n)
            if told:
                return f"{trial.label}: the weights are right, but {told}"
        return sent_too_much(trial, answers, traffic, self.bound(trial),
                             "make the piece bf16 before it is sent, not afterwards; and send it once a step")

    def cause(self, trial: Trial, answers: list[Any], master: Tensor) -> str:
        given, n = [answer["weights"] for answer in answers], trial.world_size
        kept = [answer["master"] for answer in answers]
        before = [rank["weights"] for rank in trial.inputs]
        moved = all(isinstance(each, Tensor) and each.dtype == torch.float32 and each.shape == piece.shape
                    and not near(each, piece.float(), 3 * MASTER_NEAR)
                    for each, piece in zip(kept, before[0].chunk(n)))
        if moved and all(map(near, given, before, [0.0] * n)):
            return ("the master weights have moved, and the weights are where they were: after each step they have to "
                    "become what the master weights are, rounded, for the gradient to be taken there")
        cause = next((cause for cause, would in self.mistakes(trial.inputs)
                      if all(near(a, b, WEIGHT_NEAR) for a, b in zip(given, would))), None)
        rank = next(rank for rank in range(n) if not near(given[rank], master.bfloat16(), WEIGHT_NEAR))
        return cause or (f"rank {rank} has the weights {described(given[rank])}: expected "
                         f"{described(master.bfloat16())}")

    @staticmethod
    def bound(trial: Trial) -> int:
        n = trial.world_size
        return STEPS * (n - 1) * trial.inputs[0]["weights"].nbytes // n

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        if trial.world_size < 4:
            return ""
        held = 2 * trial.inputs[0]["weights"].nbytes // trial.world_size
        return (f"{trial.label}: {amount(held)} of master weights a rank, as allowed; sent "
                f"{amount(self.bound(trial))} a rank, as allowed")


def wrong_master(given: Any, master: Tensor, rank: int, n: int) -> str | None:
    """What is wrong with what one rank returned, None where nothing is."""
    if not isinstance(given, Tensor):
        return f"rank {rank} returned {described(given)}: return the master weights of its piece"
    if given.dtype != torch.float32:
        return f"rank {rank}'s master weights are {described(given)}: they need 32 bits, float32"
    if n > 1 and given.shape == master.shape:
        return (f"rank {rank} holds {amount(given.nbytes)} of master weights, where {amount(given.nbytes // n)} will "
                "do: keep those of the own piece, the others keep theirs")
    if not near(given, master.chunk(n)[rank], MASTER_NEAR):
        right = described(master.chunk(n)[rank])
        return f"rank {rank} returned {described(given)}: expected its master weights {right}"
    return None


def near(given: Any, expected: Tensor, relative: float) -> bool:
    return (isinstance(given, Tensor) and given.shape == expected.shape and given.dtype == expected.dtype
            and torch.allclose(given.float(), expected.float(), rtol=relative, atol=0))
