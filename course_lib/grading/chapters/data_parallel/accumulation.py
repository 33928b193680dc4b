"""Exercise 3.4: k micro-batches of different sizes, one all-reduce."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.calls import record_calls
from course_lib.grading.chapters.data_parallel.averages import GradientExercise
from course_lib.grading.chapters.models import (
    LARGE,
    SMALL,
    Gradients,
    Inputs,
    combined,
    gradient_bytes,
    gradients_of,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.exercise import Trial
from course_lib.grading.spent import Spent

START = 64 * 1024  # bytes: what DDP agrees on beside its broadcast


class AccumulatedBackward(GradientExercise):
    number = "3.4"
    function = "my_accumulated_backward"
    points = 2
    budget = "2(n-1)/n M bytes sent by each rank for all k micro-batches together, not k times that"
    hints = (
        "Backward adds to the gradients that are there already. What has to happen on the last micro-batch that must "
        "not happen on the others? And how much does one micro-batch's mean count in the mean over all rows?",
        "Forward and backward of all but the last micro-batch belong inside `with model.no_sync():`, those of the last "
        "one outside. Each loss is multiplied by the share of its rows, b of B, before backward.",
        "with model.no_sync(): a loop over micro_batches[:-1] with (loss * len(x) / B).backward(), the forward pass "
        "inside, too. Behind it the same once more for micro_batches[-1]. B is yours to add up.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, frozen=["0.bias"], rows=[rows] * n)
                for n, widths, rows in ((3, SMALL, [4, 1]), (2, SMALL, [3]), (4, LARGE, [3, 3, 2, 1]))]

    besides = "headers, gloo's own algorithm and what DDP sends when it is made"

    @staticmethod
    def prepare() -> None:
        importlib.import_module("torch._dynamo")  # DDP's constructor does: seconds in which nothing is trained

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        _, calls = record_calls(function, DistributedDataParallel(model), inputs["batches"])
        # Only all-reduces carry gradients; after its first one DDP also agrees on new buckets.
        return {"gradients": gradients_of(model), "calls": [call for call in calls if call[0] == "all_reduce"]}

    def beforehand(self, trial: Trial) -> int:
        weights = trial.inputs[0]["weights"]
        return 2 * sum(tensor.nbytes for tensor in weights.values()) + START  # DDP begins with a broadcast

    def expected(self, inputs: Inputs) -> list[Gradients]:
        return [combined(self.over_batches(inputs, shares(inputs)), 1 / len(inputs))] * len(inputs)

    @staticmethod
    def over_batches(inputs: Inputs, weights: Sequence[float]) -> list[Gradients]:
        """Each rank's sum over its micro-batches, each times its weight."""
        return [combined([own_gradients(rank, [i]) for i in range(len(weights))], 1, weights) for rank in inputs]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, k = len(inputs), len(inputs[0]["batches"])
        share = shares(inputs)
        own, alike, undivided = (self.over_batches(inputs, weights) for weights in (share, [1 / k] * k, [1.0] * k))
        yield ("the micro-batches count alike, so a row of a small one counts more: multiply each loss by its share of "
               "the rows", [combined(alike, 1 / n)] * n)
        yield ("the means of all micro-batches are added up: multiply each loss by its share of the rows, and one mean "
               "is the sum", [combined(undivided, 1 / n)] * n)
        yield ("every gradient is n times too small: DDP has divided by n already", [combined(own, 1 / n**2)] * n)
        yield ("every gradient is k times too small: the shares of the rows add up to one, nothing is left to divide",
               [combined(own, 1 / n / k)] * n)
        yield from (("every rank has its own gradients: nothing was communicated, because the last micro-batch, too, "
                     "was inside no_sync", gradients) for gradients in (own, alike, undivided))
        last = [own_gradients(rank, [k - 1]) for rank in inputs]
        yield from (("only the last micro-batch is in the gradients: do not set them to zero in between",
                     [combined(last, weight / n)] * n) for weight in (share[-1], 1 / k, 1.0))

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        M = gradient_bytes(trial.inputs[0])
        times = max(sum(message for _, message, _ in answer["calls"]) for answer in answers) / M
        return [Spent("communicated the gradients", times, 1, "time", claimed=True,
                      why="no_sync belongs around forward and backward of all but the last micro-batch")]


def shares(inputs: Inputs) -> list[float]:
    """Of each micro-batch, the same on all ranks: b_i / B, its rows of those of one rank."""
    rows = [len(x) for x, _ in inputs[0]["batches"]]
    return [b / sum(rows) for b in rows]
