"""Exercise 6.2: AdamW on one's own piece, some of which decays, then everybody's pieces for everybody."""

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

    def stepped(self, weights: Tensor, gradient: Tensor, decays: Tensor | bool = True) -> Tensor:
        """decays: 1 where weight decay applies, else 0."""
        lr, (b1, b2), eps = SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"]
        self.t += 1
        self.m, self.v = b1 * self.m + (1 - b1) * gradient, b2 * self.v + (1 - b2) * gradient**2
        m, v = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        return weights * (1 - lr * SETTINGS["weight_decay"] * decays) - lr * m / (v.sqrt() + eps)


def decaying(inputs: Inputs) -> list[Tensor]:
    """For each rank's piece, 1 where an element is among the first num_decayed of all weights."""
    return list((torch.arange(len(inputs[0]["weights"])) < inputs[0]["num_decayed"]).double().chunk(len(inputs)))


def trained(inputs: Inputs, gather: Callable[[int, list[Tensor], list[Tensor]], list[Tensor]],
            forget: bool = False, decays: list[Tensor] | None = None) -> list[Tensor]:
    """Each rank's weights after all steps. gather(step, pieces, weights before) makes them of the pieces."""
    n = len(inputs)
    decays = decaying(inputs) if decays is None else decays
    weights = [rank["weights"].clone() for rank in inputs]
    own = [each.chunk(n)[r] for r, each in enumerate(weights)]
    optimizers = [AdamW(len(piece)) for piece in own]
    for step in range(STEPS):
        if forget:
            optimizers = [AdamW(len(piece)) for piece in own]
        gradients = [gradient_of(rank, each).chunk(n)[r] for r, (rank, each) in enumerate(zip(inputs, weights))]
        own = [each.stepped(*given) for each, *given in zip(optimizers, own, gradients, decays)]
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
    points = 4
    compared = "weights"
    words = "has the weights"
    tolerance = ROUNDING
    right = "the weights are right"
    budget = "state for N/n weights on each rank; (n-1)/n M bytes sent by each rank a step, M being all weights"
    hints = (
        "The optimiser must never hear of the other pieces: what it does not get, it keeps no moments for. So make the "
        "piece first, and the optimiser from it. Which of its elements are among the first num_decayed of all weights?",
        "Rank r's piece begins at r N/n, so its first num_decayed - r N/n elements decay: none where that is below 0, "
        "all where it is above N/n. An optimiser takes groups, each with settings of its own: "
        "[{\"params\": [...]}, {\"params\": [...], \"weight_decay\": 0.0}]. Two parameters that are views of one "
        "piece are stepped in that piece.",
        "piece = weights.chunk(n)[r].clone()\n"
        "cut = ...  # between 0 and len(piece)\n"
        "decayed, others = nn.Parameter(piece[:cut]), nn.Parameter(piece[cut:])\n"
        "optimizer = torch.optim.AdamW([...], **settings)\n"
        "for _ in range(num_steps):\n"
        "    gradient = mean_gradient(weights).chunk(n)[r]\n"
        "    ...  # .grad of both, step\n"
        "    dist.all_gather(list(weights.chunk(n)), ...)\n"
        "return optimizer",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, N, num_decayed in ((3, 24, 5), (1, 4, 3), (4, 16_384, 10_000)):
            weights, target, curvature = torch.randn(3, N, generator=generator, dtype=torch.float64)
            shared = {"weights": weights, "target": target, "curvature": curvature.abs() + 0.5}
            made.append(Trial([{**{name: value.clone() for name, value in shared.items()}, "num_decayed": num_decayed}
                               for _ in range(n)],
                              f"{ranks_of(n)}, {N:,} weights of which {num_decayed:,} decay, {STEPS} steps"))
        return made

    @staticmethod
    def prepare() -> None:
        importlib.import_module("torch._dynamo")  # an optimiser's constructor does

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        weights = inputs["weights"].clone()

        def mean_gradient(at: Tensor) -> Tensor:
            return gradient_of(inputs, at.detach())

        optimizer, calls = record_calls(function, weights, mean_gradient, STEPS, SETTINGS, inputs["num_decayed"])
        state = getattr(optimizer, "state", None)
        held = [] if state is None else [tensor for of_one in state.values() for tensor in of_one.values()
                                         if isinstance(tensor, Tensor)]
        return {"weights": plain(weights), "calls": calls, "kind": type(optimizer).__name__,
                "state_bytes": -1 if state is None else sum(tensor.nbytes for tensor in held)}

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return trained(inputs, from_all)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, right = len(inputs), decaying(inputs)

        def decayed(decays: Iterable[Tensor]) -> list[Tensor]:
            return trained(inputs, from_all, decays=list(decays))

        def first(count: int) -> list[Tensor]:
            return [(torch.arange(len(piece)) < count).double() for piece in right]

        yield ("all weights decay: only the first num_decayed do, so make two groups of the piece",
               decayed(torch.ones_like(piece) for piece in right))
        yield ("no weight decays: the first num_decayed do, so one of the two groups takes `settings` as they are",
               decayed(torch.zeros_like(piece) for piece in right))
        yield ("the first num_decayed of every piece decay: they are counted from the beginning of all weights, and "
               "rank r's piece begins at r N/n", decayed(first(inputs[0]["num_decayed"])))
        yield ("an n-th of num_decayed decays on every rank: they are the first of all weights, so the first ranks "
               "have all of them", decayed(first(inputs[0]["num_decayed"] // n)))
        yield ("a piece decays wholly or not at all: the boundary may lie inside it",
               decayed(piece.max().expand(len(piece)) for piece in right))
        yield "the groups are swapped: it is the first num_decayed that decay", decayed(1 - piece for piece in right)
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
            own = [each.stepped(*given) for each, *given in zip(optimizers, own, gradient.chunk(n), decaying(inputs))]
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
