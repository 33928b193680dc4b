"""Exercises 6.3, 6.4 and 6.7: in backward every gradient shrinks to one's own piece of the mean; a layer's weights are
whole while the layer is at work, and at no other time; and three whole steps of ZeRO stage 3, weighed.

    n  ranks, r this one      N  elements of a tensor      S  elements of a piece, ceil(N/n)
    M  bytes of all weights, and of all gradients          M/n  those of one's pieces
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.compare import alike, describe
from course_lib.grading.exercise import SentBytes, Trial, ranks_of
from course_lib.grading.gradients import ALIKE, LARGE, UNEVEN, Inputs, doubles, own_gradients, trial_of, weighted_sum
from course_lib.grading.on_rank import Gradients, batch_loss, model_of
from course_lib.grading.spent import Spent, highest

from . import on_rank
from .judge_shards import ADAMW_STEPS, SCALARS, ShardExercise, memory_usage, pieces_bytes
from .on_rank import SETTINGS

CRASH = "A crash comes from a weight that is read or written while its storage is empty: gather it before it is used."
UNFIT = (("is too small for", "Before numbers are copied into a weight, its storage has to have room for them: "
          "weight.nbytes bytes, eight for each number."),
         ("SIGSEGV", CRASH), ("a crash", CRASH),
         ("storage", "A weight was used while its storage was empty: gather it before the layer's forward, and again "
          "before its backward."),
         ("inplace operation", "Autograd counts changes of a parameter, and takes the refill for one: copy into "
          "parameter.data, whose changes are not counted. What comes back is the same, after all."))


def pieces(tensor: Tensor, n: int) -> list[Tensor]:
    """The n equal pieces, (S,) each, zeros at the end; rank r has the one with index r."""
    flat = tensor.detach().flatten()
    return [piece.clone() for piece in nn.functional.pad(flat, (0, -len(flat) % n)).chunk(n)]


def trials_of(seed: int, held: Callable[[Trial], int], example: Trial, **more: Any) -> list[Trial]:
    """The example, models whose parameters n does not divide, a large one, and one with many layers of one size.

    held(trial): bytes that are worth waiting for.
    """
    generator = torch.Generator().manual_seed(seed)
    cases = (3, UNEVEN), (1, UNEVEN), (4, LARGE), (4, ALIKE)
    trials = [example, *(trial_of(generator, n, widths, **more) for n, widths in cases)]
    return [Trial([{**inputs, "awaited": held(trial), "awaited_in_backward": in_backward(trial)}
                   for inputs in trial.inputs], trial.label) for trial in trials]


def in_backward(trial: Trial) -> int:
    """Bytes of all pieces of gradients and of the largest whole one."""
    n, inputs = trial.world_size, trial.inputs[0]
    sizes = [weight.numel() for name, weight in inputs["weights"].items() if name not in inputs["frozen"]]
    return pieces_bytes(trial) + 8 * max(-(-size // n) * n for size in sizes) + SCALARS


def example_of(widths: list[int], weights: dict[str, Any], batches: list[Any], frozen: list[str]) -> Trial:
    """The docstring's example, in the form of trial_of; batches: x and y of each rank, lists of rows."""
    whole = {name: doubles(rows) for name, rows in weights.items()}
    ranks = [{"widths": widths, "frozen": frozen, "weights": whole,
              "batches": [[doubles(x), doubles(y)]]} for x, y in batches]
    return Trial(ranks, f"the example, {ranks_of(len(ranks))}")


class ScatteredGradients(ShardExercise):
    number = "6.3"
    compared = "pieces"
    words = "has the piece"
    budget = ("M/n bytes held after backward, in it one whole gradient besides, also where its message is under way; "
              "(n-1)/n M bytes sent by each rank")
    errors = (("Check failed", "A reduce-scatter takes n pieces of equal size: fill up the last one, as padded(tensor) "
               "does."),)
    run = staticmethod(on_rank.scattered_gradients)

    def trials(self, seed: int) -> list[Trial]:
        # A bias b = 0 of three: the gradient of the mean of (b - y)^2 is 2/3 (b - y).
        example = example_of([1, 3], {"0.weight": [[0.0]] * 3, "0.bias": [0.0] * 3},
                             [([[0.0]] * 2, [[-1.5 * slope for slope in slopes]] * 2)
                              for slopes in ((1, 2, 3), (3, 2, 1))],
                             frozen=["0.weight"])
        return trials_of(seed, pieces_bytes, example, frozen=["0.bias"])

    def solve(self, inputs: Inputs) -> list[Gradients]:
        mean = weighted_sum([own_gradients(rank) for rank in inputs], 1 / len(inputs))
        cut = {name: pieces(gradient, len(inputs)) for name, gradient in mean.items() if gradient is not None}
        return [{name: each[r] for name, each in cut.items()} for r in range(len(inputs))]

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        left = next(((answer["left"][0], rank) for rank, answer in enumerate(answers) if answer["left"]), None)
        if not left:
            return super().flaw(trial, answers, traffic)
        return (f"the whole gradient of {left[0]} is still there on rank {left[1]}: set parameter.grad to "
                         "None when its piece is there")

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        sums, held = [[answer[name] for answer in answers] for name in ("at_once", "held")]
        return [highest("piled up", sums, 0, on=" of whole gradients in backward", claimed=True),
                memory_usage(answers, in_backward(trial), "gradients", 0, "in_backward", "in backward"),
                highest("holds", held, pieces_bytes(trial), on=" after backward", claimed=True)]


class GatheredOnUse(ShardExercise):
    number = "6.4"
    parts = ("output", "gradients", "pieces", "later")
    words = "is"
    budget = ("M/n bytes of weights held between the layers; each weight gathered twice, 2(n-1)/n M bytes sent by each "
              "rank")
    times = 2
    errors = UNFIT
    run = staticmethod(on_rank.gathered_on_use)

    def least(self, trial: Trial) -> int:
        """In backward a layer computes with its weight, and not with its bias."""
        biases = sum(8 * -(-weight.numel() // trial.world_size) for name, weight in trial.inputs[0]["weights"].items()
                     if name.endswith("bias"))
        return super().least(trial) - trial.world_size * (trial.world_size - 1) * biases

    def trials(self, seed: int) -> list[Trial]:
        example = example_of([3, 1], {"0.weight": [[1.0, 2.0, 3.0]], "0.bias": [0.0]},
                             [([[1.0, 1.0, 1.0]], [[0.0]])] * 2, frozen=[])
        return trials_of(seed, pieces_bytes, example)

    def solve(self, inputs: Inputs) -> list[Any]:
        answers = []
        for r, rank in enumerate(inputs):
            model, x = model_of(rank), rank["batches"][0][0]
            answer = {"output": model(x).detach(), "gradients": own_gradients(rank),
                      "pieces": {name: pieces(weight, len(inputs))[r] for name, weight in model.named_parameters()}}
            for weight in model.parameters():
                weight.data *= 2
            answers.append(answer | {"later": model(x).detach()})
        return answers

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        for rank, (own, right) in enumerate(zip(given, expected)):
            if own["pieces"] != {} and alike(own["pieces"], right["pieces"], self.tolerance):
                continue
            if alike(own["output"], right["output"], self.tolerance):
                return (f"rank {rank} returned {'no pieces' if not own['pieces'] else 'other pieces'}: expected a dict "
                        "with this rank's piece of each parameter of the layer")
        alone = [{name: part for name, part in own.items() if name != "later"} for own in given]
        if alike(alone, [{name: part for name, part in own.items() if name != "later"} for own in expected],
                 self.tolerance):
            return ("output and gradients are right, but the pieces that are returned are not what the hooks gather: "
                    "they were doubled, and the next output is as it was")
        return super().difference(given, expected)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [memory_usage(answers, pieces_bytes(trial), "weights", usual="between the layers")]


class WholeStep(ShardExercise):
    number = "6.7"
    compared = "pieces"
    words = "has the pieces"
    budget = ("4 M/n bytes held between the layers, M/n each of weights and gradients and 2 M/n of state; one whole "
              "gradient at a time; 3(n-1)/n M bytes sent by each rank a step")
    times = 3  # a step: gathered for forward and for backward, and gradients scattered
    imports = ("torch._dynamo",)  # an optimiser's constructor does
    errors = UNFIT
    run = staticmethod(on_rank.zero_3_training)

    def trials(self, seed: int) -> list[Trial]:
        # A weight w = 0: the gradient of (w - y)^2 is 2 (w - y), here 1 and 3.
        example = example_of([1, 1], {"0.weight": [[0.0]], "0.bias": [0.0]}, [([[1.0]], [[-0.5]]), ([[1.0]], [[-1.5]])],
                             frozen=[])
        return trials_of(seed, lambda trial: 4 * pieces_bytes(trial) + SCALARS, example, num_batches=ADAMW_STEPS)

    def bound(self, trial: Trial) -> int:
        return len(trial.inputs[0]["batches"]) * super().bound(trial)

    def least(self, trial: Trial) -> int:
        """Gathered once, and scattered: backward needs no bias, and the last layer's weight may stay from forward."""
        return super().least(trial) * 2 // 3

    def solve(self, inputs: Inputs) -> list[list[Tensor]]:
        """Each rank's pieces, in the order of the parameters, of one process with all ranks' batches."""
        model, n = model_of(inputs[0]), len(inputs)
        optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
        for step in range(len(inputs[0]["batches"])):
            optimizer.zero_grad()
            for rank in inputs:
                (batch_loss(model, rank["batches"][step]) / n).backward()
            optimizer.step()
        return [list(each) for each in zip(*(pieces(weight, n) for weight in model.parameters()))]

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        for rank, (each, right) in enumerate(zip(given, expected)):
            if not isinstance(each, list):
                return f"it returned {describe(each)}: return the optimiser, whose parameters are the pieces"
            if len(each) != len(right):
                return (f"rank {rank}'s optimiser has {len(each)} parameters, where the model has {len(right)}: it "
                        "steps this rank's piece of each, in the order of model.parameters()")
        return super().difference(given, expected)

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        largest = max(weight.nbytes for weight in trial.inputs[0]["weights"].values())
        at_once, state = [[answer[name] for answer in answers] for name in ("at_once", "state")]
        own = pieces_bytes(trial)
        return [highest("holds", state, 2 * own, on=" of state", slack=SCALARS, claimed=True),
                highest("piled up", at_once, largest, on=" of whole gradients in backward", claimed=True),
                memory_usage(answers, 4 * own, "weights, gradients and state", SCALARS, usual="between the layers")]
