"""Exercise 6.5: weights of 16 bits that do not forget small updates, because a piece of 32 bits lies beneath."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import record_calls
from course_lib.grading.chapters.models import Inputs
from course_lib.grading.chapters.zero.shards import ShardExercise
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, most

STEPS, LR = 60, 1e-3  # an update is at most a thousandth of its weight: lost in bf16, where 1.0 is followed by 1.0078
MASTER_NEAR, WEIGHT_NEAR = (1e-3, 0.0), (1e-2, 0.0)  # gradients may be rounded the other way, weights by one step
FAR = (3e-3, 0.0)  # beyond this a master weight has moved


def gradient_of(weights: Tensor) -> Tensor:
    """(N,) bf16: that of half the sum of squares."""
    return weights.clone()


class MasterSteps(ShardExercise):
    number = "6.5"
    function = "my_master_steps"
    points = 3
    compared = "weights"
    words = "has the weights"
    tolerance = WEIGHT_NEAR
    right = "the weights are right"
    budget = "4 N/n bytes of master weights on each rank; (n-1)/n 2N bytes sent by each rank a step: two for a weight"
    hints = (
        "A weight in bf16 has 8 significant bits: 1 + 0.001 is 1. Something of 32 bits has to remember what one step "
        "adds, from step to step; bf16 is only what it looks like to the others.",
        "Make the fp32 piece once, before the loop. In each step take this rank's part of the gradient, in fp32, and "
        "step the fp32 piece; then all ranks gather the pieces' bf16 roundings into `weights`, where the next gradient "
        "is taken.",
        "master = weights.chunk(n)[r].float()\n"
        "for _ in range(num_steps):\n"
        "    master -= lr * ...\n"
        "    dist.all_gather(list(weights.chunk(n)), ...)  # two bytes a weight\n"
        "return master",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, N in ((2, 8), (1, 4), (4, 16_384)):
            weights = (1 + torch.rand(N, generator=generator)).bfloat16()
            made.append(Trial([{"weights": weights.clone()} for _ in range(n)],
                              f"{ranks_of(n)}, {N:,} weights in bf16, {STEPS} steps"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs["weights"].clone()
        master, calls = record_calls(function, weights, gradient_of, STEPS, LR)
        return {"weights": plain(weights), "master": plain(master), "calls": calls}

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [self.masters(inputs).bfloat16()] * len(inputs)

    @staticmethod
    def masters(inputs: Inputs) -> Tensor:
        """The master weights of all ranks together, (N,) fp32."""
        master = inputs[0]["weights"].float()
        for _ in range(STEPS):
            master -= LR * gradient_of(master.bfloat16()).float()
        return master

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        """Likely mistakes: the cause, and the weights that each rank has then."""
        before, n = inputs[0]["weights"], len(inputs)
        master = self.masters(inputs)
        yield ("the weights are where they were: each update is smaller than half the distance to the next number that "
               "bf16 has. Something of 32 bits must remember it from one step to the next: make the master weights "
               "once, before the loop, and never anew from the weights", [before] * n)
        after = [piece.bfloat16() for piece in master.chunk(n)]
        yield ("every rank has stepped its own piece only: the others' pieces are as old as in the beginning, so "
               "all-gather after each step", [torch.cat([after[q] if q == r else piece
                                                         for q, piece in enumerate(before.chunk(n))])
                                              for r in range(n)])
        yield "every piece is rank 0's: rank r steps the piece with index r", [torch.cat(after[:1] * n)] * n

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        before, n = trial.inputs[0]["weights"], trial.world_size
        if alike(self.given(answers), [before] * n) and all(
                isinstance(given := part(answer, "master"), Tensor) and given.dtype == torch.float32
                and given.shape == piece.shape and not alike(given, piece.float(), FAR)
                for answer, piece in zip(answers, before.chunk(n))):
            return ("the master weights have moved, and the weights are where they were: after each step they have to "
                    "become what the master weights are, rounded, for the gradient to be taken there")
        return super().wrong(trial, answers)

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        pieces = self.masters(trial.inputs).chunk(trial.world_size)
        for rank, (answer, right) in enumerate(zip(answers, pieces)):
            given = answer["master"]
            if not isinstance(given, Tensor):
                return f"rank {rank} returned {describe(given)}: return the master weights of its piece"
            if given.dtype != torch.float32:
                return f"rank {rank}'s master weights are {describe(given)}: they need 32 bits, float32"
            of_all = trial.world_size > 1 and given.shape == trial.inputs[0]["weights"].shape
            if not of_all and not alike(given, right, MASTER_NEAR):
                return f"rank {rank} returned {describe(given)}: expected its master weights {describe(right)}"
        return None

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held = [answer["master"].nbytes if isinstance(answer["master"], Tensor) else 0 for answer in answers]
        return [Spent("holds", max(held), 4 * trial.inputs[0]["weights"].numel() // trial.world_size, rank=most(held),
                      on=" of master weights", why="keep those of the own piece, the others keep theirs")]

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return STEPS * (n - 1) * trial.inputs[0]["weights"].nbytes // n

    def waste(self, answers: list[Any]) -> str:
        return "make the piece bf16 before it is sent, not afterwards; and send it once a step"
