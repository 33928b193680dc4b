"""Exercises 3.1 and 3.3: the mean of all ranks' gradients, weighed by rows, and in buckets."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from course_lib.grading.calls import CollectiveExercise, num_calls, record_calls
from course_lib.grading.chapters.data_parallel.buckets import filled
from course_lib.grading.chapters.models import (
    EQUAL,
    LARGE,
    ROUNDING,
    SMALL,
    Gradients,
    Inputs,
    batch_loss,
    combined,
    gradient_bytes,
    gradient_sizes,
    gradients_of,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import Spent

WITHOUT_DIVIDING = ("every gradient is n times too large: all-reduce makes the sum, and the mean is asked, so divide "
                    "by n")


NUMBER = 64  # bytes: room for the rows, however they are sent


class GradientExercise(CollectiveExercise):
    """Afterwards every rank's model has the mean gradients of all. A rank answers `gradients` and `calls`."""

    compared = "gradients"
    words = "has the gradient"
    tolerance = ROUNDING
    right = "the gradients are right"

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        batch = inputs["batches"][0]
        batch_loss(model, batch).backward()
        _, calls = record_calls(function, model, inputs["cap"] if "cap" in inputs else len(batch[0]))
        return {"gradients": gradients_of(model), "calls": calls}

    @abstractmethod
    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        """Likely mistakes: the cause, and the gradients that each rank has then."""

    def expected(self, inputs: Inputs) -> list[Gradients]:
        """The gradients of the mean loss over everybody's rows, as one process would have them."""
        return [combined([own_gradients(rank) for rank in inputs], 1 / len(inputs))] * len(inputs)

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return 2 * (n - 1) * gradient_bytes(trial.inputs[0]) // n

    def difference(self, given: list[Any], expected: list[Gradients]) -> str:
        for rank, (gradients, right) in enumerate(zip(given, expected)):
            for name in right:
                if right[name] is None and type(gradients) is dict and gradients.get(name) is not None:
                    return f"parameter {name} is frozen and had no gradient; on rank {rank} it has got one"
        return super().difference(given, expected)


class AverageGradients(GradientExercise):
    number = "3.1"
    function = "my_average_gradients"
    points = 2
    tolerance = (1e-6, 1e-7)  # a share of the rows in float32 will do, also where gradients of 0.1 cancel
    budget = "one all-reduce for each gradient and one for a number, 2(n-1)/n M bytes sent by each rank"
    hints = (
        "Which parameters have a gradient? One that is frozen or was not used has .grad None, on every rank. "
        "What dist.all_reduce leaves behind is a sum; what has to stand there before, so that the sum is the answer?",
        "Each rank's gradient is a mean over its own rows, so it counts with the share num_rows / B of all B rows. B "
        "is a sum over the ranks, too: a tensor with one number. Weigh, then all-reduce; nothing is left to divide.",
        "total = torch.tensor(float(num_rows)); dist.all_reduce(total). Then, for each parameter whose .grad is not "
        "None: parameter.grad *= (this rank's share), and one more call.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        trials = [trial_of(generator, len(rows), widths, frozen=["0.bias"], rows=[[B] for B in rows])
                  for rows, widths in (([5, 2, 1], SMALL), ([3], SMALL), ([2, 2, 6, 3], LARGE))]
        return [replace(trial, label=f"{trial.label}, {self.rows(trial.inputs)} rows") for trial in trials]

    @staticmethod
    def rows(inputs: Inputs) -> list[int]:
        """Of each rank."""
        return [len(rank["batches"][0][0]) for rank in inputs]

    def expected(self, inputs: Inputs) -> list[Gradients]:
        rows = self.rows(inputs)
        return [combined([own_gradients(rank) for rank in inputs], 1 / sum(rows), rows)] * len(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, own, rows = len(inputs), [own_gradients(rank) for rank in inputs], self.rows(inputs)
        B, total = sum(rows), combined(own)
        weighed = combined(own, 1 / B, rows)
        yield ("all ranks count alike, so a row on a rank with few rows counts more than one elsewhere: weigh each "
               "rank's gradient by its share of the rows", [combined([total], 1 / n)] * n)
        yield ("the sum of all ranks' means: weigh each by its share of the rows, and the sum is one mean", [total] * n)
        yield ("every gradient is B times too large: the weights are num_rows / B, so that they add up to one",
               [combined([weighed], B)] * n)
        yield ("every gradient is n times too small: the shares add up to one, nothing is left to divide",
               [combined([weighed], 1 / n)] * n)
        yield ("every rank weighs the sum by its own rows: weigh its gradient before the all-reduce",
               [combined([total], b / B) for b in rows])
        yield ("every rank still has the gradients of its own batch: put the mean into parameter.grad itself; a copy "
               "of it, or parameter.data, does not reach the optimizer's step", own)
        yield ("every rank weighs its own gradients, and nobody adds them up",
               [combined([each], b / B) for each, b in zip(own, rows)])
        yield "every rank has rank 0's gradients: all batches count, not one", [own[0]] * n
        yield ("rank 0 alone has the mean: the others would take another step, and the models drift apart",
               [weighed, *own[1:]])

    def bound(self, trial: Trial) -> int:
        return super().bound(trial) + 2 * NUMBER

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, len(gradient_sizes(trial.inputs[0])) + 1,
                          "one for each gradient and one for the rows, so is any averaged twice?")]


class BucketedAverage(GradientExercise):
    number = "3.3"
    function = "my_bucketed_average"
    points = 3
    budget = "one all-reduce for each bucket of my_buckets, 2(n-1)/n M bytes sent by each rank"
    hints = (
        "A bucket is one tensor while it travels: torch.cat of its gradients, each flattened. Afterwards every "
        "gradient takes its own stretch back, in the same order.",
        "For each list of indices: the gradients it names, flattened and put together; one all-reduce; divide once. "
        "Then split by the gradients' numel, and write each piece into its gradient: torch.cat was a copy.",
        "flat = torch.cat([g.flatten() for g in bucket]); after the all-reduce, go through "
        "zip(bucket, flat.split([g.numel() for g in bucket])): each piece has to be put into its g, in g's shape.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        # The first one's buckets are equally large: gloo would end ranks that exchange buckets of different sizes.
        kinds = ((3, EQUAL, [], 160), (2, SMALL, ["2.bias"], 64), (4, LARGE, ["2.bias"], 100_000))
        return [trial_of(generator, n, widths, frozen, cap=cap) for n, widths, frozen, cap in kinds]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, own = len(inputs), [own_gradients(rank) for rank in inputs]
        total = combined(own)
        yield WITHOUT_DIVIDING, [total] * n
        yield ("every rank still has its own gradients: torch.cat makes a copy, so what has come back must be "
               "written into the gradients again", own)
        mean = combined([total], 1 / n)
        yield ("the mean comes back into the wrong gradients: a bucket is taken apart in another order than it was put "
               "together", [taken_apart_backwards(mean, self.buckets(inputs[0]))] * n)
        yield ("the buckets are right, but only the last one is written back: each has to be taken apart",
               [{name: mean[name] if name in self.buckets(inputs[0])[-1] else gradient
                 for name, gradient in each.items()} for each in own])
        yield ("each rank sends its buckets in an order of its own, so different gradients are added to each other: "
               "all ranks need the same order", [mixed(own, self.buckets(inputs[0]), r) for r in range(n)])

    @staticmethod
    def buckets(inputs: dict[str, Any]) -> list[list[str]]:
        """The names of the parameters in each bucket."""
        names = [name for name in inputs["weights"] if name not in inputs["frozen"]]
        return [[names[index] for index in bucket] for bucket in filled(gradient_sizes(inputs), inputs["cap"])]

    def messages(self, inputs: dict[str, Any]) -> list[int]:
        """Bytes of each bucket."""
        return [sum(inputs["weights"][name].nbytes for name in bucket) for bucket in self.buckets(inputs)]

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, len(self.messages(trial.inputs[0])),
                          "one message for a whole bucket, not one for each gradient")]

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        right = self.messages(trial.inputs[0])
        for answer in answers:
            sent = [message for _, message, _ in answer["calls"]]
            if max(sent, default=0) > max(right):
                return (f"one message has {max(sent):,} bytes, the largest bucket {max(right):,}: what waits for the "
                        "last gradient cannot leave while backward still runs")
            if sent != right and len(sent) <= len(right):
                return (f"the messages have {sent} bytes, the buckets {right}: they are sent in the order of "
                        "my_buckets, the one with the last parameters first")
        return None


def taken_apart_backwards(mean: Gradients, buckets: list[list[str]]) -> Gradients:
    """What the gradients are when each bucket's pieces go to its parameters in the opposite order."""
    result = dict(mean)
    for bucket in buckets:
        flat = torch.cat([mean[name].flatten() for name in bucket])
        start = 0
        for name in reversed(bucket):
            stop = start + mean[name].numel()
            result[name] = flat[start:stop].view_as(mean[name])
            start = stop
    return result


def mixed(own: list[Gradients], buckets: list[list[str]], rank: int) -> Gradients:
    """What `rank` has when every rank r begins with bucket r, going around, where all buckets are equally large."""
    n, result = len(own), dict(own[rank])
    flats = [[torch.cat([gradients[name].flatten() for name in bucket]) for bucket in buckets] for gradients in own]
    if len({flat.numel() for flat in flats[0]}) > 1:
        return {}
    for step in range(len(buckets)):
        mean = sum(flats[r][(r + step) % len(buckets)] for r in range(n)) / n
        bucket, start = buckets[(rank + step) % len(buckets)], 0
        for name in bucket:
            stop = start + own[rank][name].numel()
            result[name] = mean[start:stop].view_as(own[rank][name])
            start = stop
    return result
