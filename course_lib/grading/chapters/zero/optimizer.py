"""Exercise 6.2: AdamW on one's own piece, then everybody's pieces for everybody."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import record_calls
from course_lib.grading.chapters.models import ROUNDING, Inputs
from course_lib.grading.chapters.zero.shards import ShardExercise
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount, most

STEPS = 3
SETTINGS = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 0.1, "weight_decay": 0.01}
SCALARS = 64  # bytes: AdamW's count of steps


def gradient_of(inputs: dict[str, Any], weights: Tensor) -> Tensor:
    """The gradient of a loss that couples all weights, the same on every rank, (N,)."""
    return inputs["curvature"] * (weights - inputs["target"]) + weights.roll(1) / 4


class AdamW:
    """torch's, written out: here no second of importing is spent on it."""

    def __init__(self, size: int) -> None:
        self.m, self.v, self.t = *torch.zeros(2, size, dtype=torch.float64), 0

    def stepped(self, weights: Tensor, gradient: Tensor) -> Tensor:
        lr, (b1, b2), eps = SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"]
        self.t += 1
        self.m, self.v = b1 * self.m + (1 - b1) * gradient, b2 * self.v + (1 - b2) * gradient**2
        m, v = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return weights * (1 - lr * SETTINGS["weight_decay"]) - lr * m / (v.sqrt() + eps)


def trained(inputs: Inputs, gather: Callable[[int, list[Tensor], list[Tensor]], list[Tensor]],
            forget: bool = False) -> list[Tensor]:
    """Each rank's weights after all steps. gather(step, pieces, weights before) makes them of the pieces."""
    n = len(inputs)
    weights = [rank["weights"].clone() for rank in inputs]
    own = [each.chunk(n)[r] for r, each in enumerate(weights)]
    optimizers = [AdamW(len(piece)) for piece in own]
    for step in range(STEPS):
        if forget:
            optimizers = [AdamW(len(piece)) for piece in own]
        gradients = [gradient_of(rank, each).chunk(n)[r] for r, (rank, each) in enumerate(zip(inputs, weights))]
        own = [each.stepped(piece, gradient) for each, piece, gradient in zip(optimizers, own, gradients)]
        weights = gather(step, own, weights)
    return weights


def from_all(step: int, own: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    return [torch.cat(own)] * len(own)


def from_nobody(step: int, own: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    n = len(own)
    return [torch.cat([own[q] if q == r else piece for q, piece in enumerate(before[r].chunk(n))]) for r in range(n)]


def at_the_end(step: int, own: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    return (from_all if step == STEPS - 1 else from_nobody)(step, own, before)


def all_by_rank_0(step: int, own: list[Tensor], before: list[Tensor]) -> list[Tensor]:
    return [torch.cat([own[0]] * len(own))] * len(own)


class ShardedAdamW(ShardExercise):
    number = "6.2"
    function = "my_sharded_adamw"
    points = 3
    compared = "weights"
    words = "has the weights"
    tolerance = ROUNDING
    right = "the weights are right"
    budget = "state for N/n weights on each rank; (n-1)/n M bytes sent by each rank a step, M being all weights"
    hints = (
        "The optimiser must never hear of the other pieces: what it does not get, it keeps no moments for. So make the "
        "piece first, and the optimiser from it.",
        "piece = nn.Parameter(weights.chunk(n)[r].clone()); optimizer = torch.optim.AdamW([piece], **settings); in "
        "each step piece.grad = mean_gradient(weights).chunk(n)[r], then optimizer.step(), then "
        "dist.all_gather(list(weights.chunk(n)), piece.data).",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, N in ((3, 12), (1, 4), (4, 16_384)):
            weights, target, curvature = torch.randn(3, N, generator=generator, dtype=torch.float64)
            shared = {"weights": weights, "target": target, "curvature": curvature.abs() + 0.5}
            made.append(Trial([{name: value.clone() for name, value in shared.items()} for _ in range(n)],
                              f"{ranks_of(n)}, {N:,} weights, {STEPS} steps"))
        return made

    @staticmethod
    def prepare() -> None:
        importlib.import_module("torch._dynamo")  # an optimiser's constructor does

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs["weights"].clone()

        def mean_gradient(at: Tensor) -> Tensor:
            return gradient_of(inputs, at.detach())

        optimizer, calls = record_calls(function, weights, mean_gradient, STEPS, SETTINGS)
        state = getattr(optimizer, "state", None)
        held = [] if state is None else [tensor for of_one in state.values() for tensor in of_one.values()
                                         if isinstance(tensor, Tensor)]
        return {"weights": plain(weights), "calls": calls, "kind": type(optimizer).__name__,
                "state_bytes": -1 if state is None else sum(tensor.nbytes for tensor in held)}

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return trained(inputs, from_all)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        yield ("every rank has stepped its own piece only: the others' pieces of `weights` are as old as in the "
               "beginning, so all-gather after each step", trained(inputs, from_nobody))
        yield ("the pieces are gathered once, at the end: every gradient before was taken at weights of which n-1 "
               "pieces were old", trained(inputs, at_the_end))
        yield ("the moments are forgotten between steps: make the optimiser once, before the loop",
               trained(inputs, from_all, forget=True))
        yield ("every piece is rank 0's: rank r steps the piece with index r", trained(inputs, all_by_rank_0))
        yield ("the weights are one step behind: gather after the step, not before it", self.behind(inputs))
        yield ("the weights are as they were: what the optimiser steps is a copy of the piece, so gather it into "
               "`weights`", [rank["weights"] for rank in inputs])

    @staticmethod
    def behind(inputs: Inputs) -> list[Tensor]:
        """When each step begins with the gather: the last step stays in the pieces."""
        n, own = len(inputs), [rank["weights"].chunk(len(inputs))[r] for r, rank in enumerate(inputs)]
        optimizers, gathered = [AdamW(len(piece)) for piece in own], inputs[0]["weights"]
        gradient = gradient_of(inputs[0], gathered)
        for _ in range(STEPS):
            gathered = torch.cat(own)
            own = [each.stepped(piece, part) for each, piece, part in zip(optimizers, own, gradient.chunk(n))]
            gradient = gradient_of(inputs[0], gathered)
        return [gathered] * n

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return STEPS * (n - 1) * trial.inputs[0]["weights"].nbytes // n

    def waste(self, answers: list[Any]) -> str:
        return "one all-gather a step, and the gradient is the mean already"

    @staticmethod
    def allowed_state(trial: Trial) -> int:
        return 2 * trial.inputs[0]["weights"].nbytes // trial.world_size

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        held, needed = [answer["state_bytes"] for answer in answers], self.allowed_state(trial)
        if min(held) < 0:
            return (f"the function returned a {answers[0]['kind']}: return the optimiser, so that its state can be "
                    "weighed")
        if min(held) < needed:
            return (f"the optimiser holds {amount(min(held))}, where two moments of a piece are {amount(needed)}: "
                    "return the one that took the steps")
        return None

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held = [answer["state_bytes"] for answer in answers]
        rank = most(held)
        allowed = self.allowed_state(trial)
        return [Spent("holds", held[rank], allowed, on=" of state", rank=rank, slack=SCALARS, claimed=True,
                      limit=f"{{}} allowed, {amount(trial.world_size * allowed)} without sharding",
                      why="the optimiser was made from all weights, so it keeps two moments for each of them; make it "
                          "from the piece")]
