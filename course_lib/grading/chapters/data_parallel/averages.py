"""Exercises 3.1 and 3.3: the mean of all ranks' gradients, parameter by parameter and in buckets."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch

from course_lib.grading.chapters.data_parallel.buckets import filled
from course_lib.grading.chapters.models import (
    EQUAL,
    LARGE,
    SMALL,
    Gradients,
    alike,
    batch_loss,
    close,
    combined,
    counted,
    gradient_bytes,
    gradient_sizes,
    gradients_of,
    model_of,
    own_gradients,
    sent_by,
    trial_of,
)
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.tensors import SMALLEST_BUDGET, amount, described

Inputs = list[dict[str, Any]]


class GradientExercise(Exercise):
    """Afterwards every rank's model has the mean gradients of all. A rank answers `gradients` and `calls`."""

    @abstractmethod
    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        """Likely mistakes: the cause, and the gradients that each rank has then."""

    @abstractmethod
    def calls_told(self, trial: Trial, calls: list[list[Any]]) -> str | None:
        """What is wrong with the all-reduces of one rank, None where nothing is."""

    def expected(self, inputs: Inputs) -> Gradients:
        """The gradients of the mean loss over everybody's rows, as one process would have them."""
        return combined([own_gradients(rank) for rank in inputs], 1 / len(inputs))

    def beforehand(self, trial: Trial) -> int:
        """Bytes that a rank sends before the reader's function is called."""
        return 0

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return 2 * (n - 1) * gradient_bytes(trial.inputs[0]) // n

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        given, expected = [answer["gradients"] for answer in answers], self.expected(trial.inputs)
        if alike(given, [expected] * len(given)):
            return self.over_budget(trial, answers, traffic)
        for cause, would_give in self.mistakes(trial.inputs):
            if alike(given, would_give):
                return f"{trial.label}: {cause}"
        return f"{trial.label}: {self.first_difference(given, expected)}"

    @staticmethod
    def first_difference(given: list[Gradients], expected: Gradients) -> str:
        for rank, gradients in enumerate(given):
            for name, right in expected.items():
                has = gradients.get(name)
                if right is None and has is not None:
                    return f"parameter {name} is frozen and had no gradient; on rank {rank} it has got one"
                if not close(has, right):
                    return f"rank {rank}, {name}.grad is {described(has)}: expected {described(right)}"
        return "there are gradients of parameters that the model does not have"

    def over_budget(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        for answer in answers:
            told = self.calls_told(trial, answer["calls"])
            if told:
                return f"{trial.label}: the gradients are right, but {told}"
        bound, before = self.bound(trial), self.beforehand(trial)
        sent = [sent_by(rank, answers, traffic, before) for rank in range(trial.world_size)]
        most = max(sent)
        if most > bound + traffic.slack(bound):
            return (f"{trial.label}: the gradients are right, but over budget: rank {sent.index(most)} sent "
                    f"{amount(most)}, where {amount(bound)} will do")
        return None

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        bound = self.bound(trial)  # a right answer cannot send less, nor more: see over_budget
        return f"{trial.label}: sent {amount(bound)} a rank, as allowed" if bound >= SMALLEST_BUDGET else ""


class AverageGradients(GradientExercise):
    number = "3.1"
    function = "my_average_gradients"
    points = 2
    budget = "one all-reduce for each gradient, 2(n-1)/n M bytes sent by each rank, M being all gradients"
    hints = (
        "Which parameters have a gradient? One that is frozen or was not used has .grad None, on every rank. "
        "What dist.all_reduce leaves behind is a sum.",
        "for parameter in model.parameters(): where parameter.grad is not None, dist.all_reduce(parameter.grad) and "
        "then parameter.grad /= n.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [trial_of(generator, n, widths, frozen=["0.bias"])
                for n, widths in ((3, SMALL), (1, SMALL), (4, LARGE))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        batch_loss(model, inputs["batches"][0]).backward()
        _, calls = counted(function, model)
        return {"gradients": gradients_of(model), "calls": calls}

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, own = len(inputs), [own_gradients(rank) for rank in inputs]
        total = combined(own)
        yield ("every gradient is n times too large: all-reduce makes the sum, and the mean is asked, so divide by n",
               [total] * n)
        yield ("every gradient is n times too small: it is divided by n twice",
               [combined([total], 1 / n**2)] * n)
        yield ("every rank still has the gradients of its own batch: put the mean into parameter.grad itself; a copy "
               "of it, or parameter.data, does not reach the optimizer's step", own)
        yield ("every rank divides its own gradients by n, and nobody adds them up",
               [combined([each], 1 / n) for each in own])
        yield "every rank has rank 0's gradients: all batches count, not one", [own[0]] * n
        yield ("rank 0 alone has the mean: the others would take another step, and the models drift apart",
               [combined([total], 1 / n), *own[1:]])

    def calls_told(self, trial: Trial, calls: list[list[Any]]) -> str | None:
        most = len(gradient_sizes(trial.inputs[0]))
        if len(calls) > most:
            return f"it took {len(calls)} calls where {most} will do, one for each gradient: is any averaged twice?"
        return None


class BucketedAverage(GradientExercise):
    number = "3.3"
    function = "my_bucketed_average"
    points = 3
    budget = "one all-reduce for each bucket of my_buckets, 2(n-1)/n M bytes sent by each rank"
    hints = (
        "A bucket is one tensor while it travels: torch.cat of its gradients, each flattened. Afterwards every "
        "gradient takes its own stretch back, in the same order.",
        "flat = torch.cat([g.flatten() for g in bucket]); after the all-reduce, go through "
        "zip(bucket, flat.split([g.numel() for g in bucket])) with g.copy_(piece.view_as(g)).",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        # The first one's buckets are equally large: gloo would end ranks that exchange buckets of different sizes.
        kinds = ((3, EQUAL, [], 160), (2, SMALL, ["2.bias"], 64), (4, LARGE, ["2.bias"], 100_000))
        return [trial_of(generator, n, widths, frozen, cap=cap) for n, widths, frozen, cap in kinds]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model = model_of(inputs)
        batch_loss(model, inputs["batches"][0]).backward()
        _, calls = counted(function, model, inputs["cap"])
        return {"gradients": gradients_of(model), "calls": calls}

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, own = len(inputs), [own_gradients(rank) for rank in inputs]
        total = combined(own)
        yield ("every gradient is n times too large: all-reduce makes the sum, and the mean is asked, so divide by n",
               [total] * n)
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

    def calls_told(self, trial: Trial, calls: list[list[Any]]) -> str | None:
        inputs = trial.inputs[0]
        right = [sum(inputs["weights"][name].nbytes for name in bucket) for bucket in self.buckets(inputs)]
        sent = [message for _, message, _ in calls]
        if len(sent) > len(right):
            return (f"it took {len(sent)} calls where {len(right)} will do: one message for a whole bucket, not one "
                    "for each gradient")
        if max(sent, default=0) > max(right):
            return (f"one message has {max(sent):,} bytes, the largest bucket {max(right):,}: what waits for the last "
                    "gradient cannot leave while backward still runs")
        if sent != right:
            return (f"the messages have {sent} bytes, the buckets {right}: they are sent in the order of my_buckets, "
                    "the one with the last parameters first")
        return None

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        num = len(self.buckets(trial.inputs[0]))
        told = super().figures(trial, traffic)
        return f"{told}, in {num} calls, {num} allowed" if told else ""


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
