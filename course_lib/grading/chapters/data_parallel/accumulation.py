"""Exercise 3.4: k micro-batches, one all-reduce."""

import importlib
from collections.abc import Callable, Iterable
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
        "not happen on the others? And the mean of k means is their sum divided by k.",
        "Inside `with model.no_sync():` call the model and backward for micro_batches[:-1], then both once more "
        "outside for micro_batches[-1]; each loss divided by len(micro_batches).",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, frozen=["0.bias"], num_batches=k)
                for n, widths, k in ((3, SMALL, 2), (2, SMALL, 1), (4, LARGE, 4))]

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
        return [combined(self.over_batches(inputs), 1 / len(inputs) / len(inputs[0]["batches"]))] * len(inputs)

    @staticmethod
    def over_batches(inputs: Inputs) -> list[Gradients]:
        """Each rank's sum over its micro-batches."""
        return [own_gradients(rank, range(len(rank["batches"]))) for rank in inputs]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, k, own = len(inputs), len(inputs[0]["batches"]), self.over_batches(inputs)
        total = combined(own)
        yield ("every gradient is k times too large: backward adds up k means, and one mean is asked, so divide each "
               "loss by k", [combined([total], 1 / n)] * n)
        yield ("every gradient is n times too small: DDP has divided by n already, divide by k alone",
               [combined([total], 1 / k / n**2)] * n)
        yield ("every gradient is k times too small: it is divided by k twice", [combined([total], 1 / n / k**2)] * n)
        yield ("every rank has its own gradients: nothing was communicated, because the last micro-batch, too, was "
               "inside no_sync", [combined([each], 1 / k) for each in own])
        yield ("every rank has its own gradients, k times too large: nothing was communicated, because the last "
               "micro-batch, too, was inside no_sync", own)
        last = [own_gradients(rank, [k - 1]) for rank in inputs]
        yield ("only the last micro-batch is in the gradients: do not set them to zero in between",
               [combined(last, 1 / n / k)] * n)
        yield ("only the last micro-batch is in the gradients: do not set them to zero in between",
               [combined(last, 1 / n)] * n)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        M = gradient_bytes(trial.inputs[0])
        times = max(sum(message for _, message, _ in answer["calls"]) for answer in answers) / M
        return [Spent("communicated the gradients", times, 1, "time", claimed=True,
                      why="no_sync belongs around forward and backward of all but the last micro-batch")]
