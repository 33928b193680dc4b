"""Exercises 3.1, 3.3, 3.4, 3.5 and 3.7: the mean of all ranks' gradients, and what it took to get it.

    n  ranks      N  numbers in all gradients, M  their bytes      k  micro-batches of a step; in 3.5 numbers to send

Of 3.7 the order of events on each rank counts, never how long they took, so that a busy machine fails nobody:

    gradient ... begin ... gradient     a message that had begun when another gradient was still computed is hidden
    gradient ... begin ... wait         one that the rank waits for first is not, nor one that begins after the last

Sources: Li et al. 2020 for buckets and no_sync; Lin et al. 2018, "Deep Gradient Compression", and Stich et al. 2018,
"Sparsified SGD with Memory", for 3.5.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import torch

from course_lib.grading.exercise import SentBytes, Trial, ranks_of
from course_lib.grading.gradients import (
    EQUAL,
    LARGE,
    ROUNDING,
    SMALL,
    Inputs,
    doubles,
    gradient_sizes,
    trial_of,
    weighted_sum,
)
from course_lib.grading.kinds import CollectiveExercise, num_calls
from course_lib.grading.on_rank import batch_loss, gradients_of, model_of, ring_bytes
from course_lib.grading.spent import Spent, highest, most

from . import on_rank
from .judge_plans import fill

OF_ROWS = 512  # bytes of a message that says how many rows there are
START = 64 * 1024  # bytes: what DDP agrees on beside its broadcast


class GradientExercise(CollectiveExercise):
    """Afterwards every rank's model has the mean gradients of all. A rank answers `gradients` and `calls`."""

    cases: ClassVar[tuple[tuple[str, dict[str, Any]], ...]]  # more words for a label; how a trial is made
    compared = "gradients"
    words = "has the gradient"
    tolerance = ROUNDING
    run = staticmethod(on_rank.average)

    @abstractmethod
    def example(self) -> list[dict[str, Any]]:
        """What the ranks of the docstring's example get."""

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = [(words, trial_of(generator, **case)) for words, case in self.cases]
        example = self.example()
        return [Trial(example, f"the example, {ranks_of(len(example))}"),
                *(replace(trial, label=f"{trial.label}, {words}") for words, trial in made)]

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        """The gradients of the mean loss over everybody's rows, in one process."""
        if "given" in inputs[0]:
            rows = [len(rank["batches"][0][0]) for rank in inputs]
            mean = {name: sum(b * rank["given"][name] for b, rank in zip(rows, inputs)) / sum(rows)
                    for name in inputs[0]["given"]}
            return [{name: mean.get(name) for name in inputs[0]["weights"]}] * len(inputs)
        model, batches = model_of(inputs[0]), [batch for rank in inputs for batch in rank["batches"]]
        batch_loss(model, [torch.cat(column) for column in zip(*batches)]).backward()
        return [gradients_of(model)] * len(inputs)

    def bound(self, trial: Trial) -> int:
        return ring_bytes(sum(gradient_sizes(trial.inputs[0])), trial.world_size)

    def least(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * sum(gradient_sizes(trial.inputs[0]))


def small(batches: list[tuple[int, float]], **more: Any) -> dict[str, Any]:
    """A rank with one weight w = 0, and of each batch rows x = 1 whose mean gradient of (w x - y)^2 is the given one.

    batches: rows and gradient of each.
    """
    return {"widths": [1, 1], "frozen": ["0.bias"], "weights": {"0.weight": doubles([[0]]), "0.bias": doubles([0])},
            "batches": [[doubles([[1]] * b), doubles([[-slope / 2]] * b)] for b, slope in batches], **more}


def with_gradients(rows: int, gradients: dict[str, list[Any]], **more: Any) -> dict[str, Any]:
    """A rank whose backward has left these gradients, of a layer of two inputs and one output."""
    given = {name: doubles(values) for name, values in gradients.items()}
    weights = {"0.weight": doubles([[0, 0]]), "0.bias": doubles([0])}
    batch = [doubles([[0] * width] * rows) for width in (2, 1)]
    return {"widths": [2, 1], "frozen": [name for name in weights if name not in given], "weights": weights,
            "batches": [batch], "given": given, **more}


class AverageGradients(GradientExercise):
    number = "3.1"
    tolerance = (1e-6, 1e-7)  # a share of the rows in float32 will do, also where gradients of 0.1 cancel
    budget = "one all-reduce for each gradient and one for a number, 2(n-1)/n M bytes sent by each rank"
    cases = tuple((f"{b} rows", {"n": len(b), "widths": widths, "frozen": ["0.bias"], "rows": [[rows] for rows in b]})
                  for b, widths in (([5, 2, 1], SMALL), ([100, 60], SMALL), ([3], SMALL), ([2, 2, 6, 3], LARGE)))

    def example(self) -> list[dict[str, Any]]:
        return [with_gradients(b, {"0.weight": [gradient]}) for b, gradient in ((3, [1.0, 2.0]), (1, [5.0, 6.0]))]

    def bound(self, trial: Trial) -> int:
        return super().bound(trial) + 128  # room for the rows, however they are sent

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        counted = [answer | {"calls": rows_at_once(answer["calls"])} for answer in answers]
        return [num_calls(counted, len(gradient_sizes(trial.inputs[0])) + 1)]


def rows_at_once(calls: list[list[Any]]) -> list[list[Any]]:
    """The calls, those that exchange numbers of rows counted as one: all_gather_object makes two of it."""
    of_rows = [call for call in calls if call[0] != "all_reduce" and call[1] <= OF_ROWS]
    return [call for call in calls if call not in of_rows[1:]]


class BucketedAverage(GradientExercise):
    number = "3.3"
    budget = "one all-reduce for each bucket of my_buckets, 2(n-1)/n M bytes sent by each rank"
    # The first one's buckets are equally large: gloo would end ranks that exchange buckets of different sizes.
    cases = (("buckets of 160 B", {"n": 3, "widths": EQUAL, "cap": 160}),
             ("buckets of 64 B", {"n": 2, "widths": SMALL, "frozen": ["2.bias"], "cap": 64}),
             ("buckets of 100 kB", {"n": 4, "widths": LARGE, "frozen": ["2.bias"], "cap": 100_000}))

    def example(self) -> list[dict[str, Any]]:
        return [with_gradients(1, {"0.weight": [weight], "0.bias": [bias]}, cap=24)
                for weight, bias in (([1.0, 2.0], 5.0), ([3.0, 6.0], 7.0))]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, len(bucket_bytes(trial)))]

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        right = bucket_bytes(trial)
        sent = ([message for _, message, _ in answer["calls"]] for answer in answers)
        # More calls are over budget, and said there.
        return next((f"the messages have {own} bytes, the buckets {right}" for own in sent
                     if own != right and len(own) <= len(right)), None) or super().flaw(trial, answers, traffic)


class AccumulatedBackward(GradientExercise):
    number = "3.4"
    budget = ("2(n-1)/n M bytes sent by each rank for all k micro-batches together, not k times that, and activations "
              "of one micro-batch at a time")
    cases = tuple((f"micro-batches of {b} rows", {"n": n, "widths": widths, "frozen": ["0.bias"], "rows": [b] * n})
                  for n, widths, b in ((3, SMALL, [4, 1]), (2, SMALL, [3]), (4, LARGE, [3, 3, 2, 1])))
    besides = "headers, gloo's own algorithm and what DDP sends when it is made"
    run = staticmethod(on_rank.accumulate)

    def example(self) -> list[dict[str, Any]]:
        return [small([(3, 1.0), (1, 5.0)])]

    def beforehand(self, trial: Trial) -> int:
        return 2 * sum(tensor.nbytes for tensor in trial.inputs[0]["weights"].values()) + START  # DDP's broadcast

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        sent = max(sum(message for _, message, _ in answer["calls"]) for answer in answers)
        times = sent / sum(gradient_sizes(trial.inputs[0]))
        return [row_usage(trial, answers), Spent("communicated the gradients", times, 1, "time", claimed=True)]


class TopKAverage(GradientExercise):
    number = "3.5"
    compared = "steps"
    words = "is"
    budget = "each rank sends k numbers of 8 bytes and their k places of 8 bytes to all: (n-1) 16k bytes a step"
    cases = tuple((f"3 steps, k = {k}", {"n": n, "widths": widths, "num_batches": 3, "k": k})
                  for n, widths, k in ((3, SMALL, 9), (1, SMALL, 5), (4, LARGE, 258)))
    run = staticmethod(on_rank.top_k)

    def example(self) -> list[dict[str, Any]]:
        return [{"given": [doubles(gradient)], "k": 1}
                for gradient in ([4.0, -1.0, 2.0], [1.0, -6.0, 0.0])]

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        steps, gradients = [{} for _ in inputs], [on_rank.flat_gradients(rank) for rank in inputs]
        owed = torch.zeros(len(inputs), len(gradients[0][0]), dtype=torch.float64)  # (n, N)
        for number, of_ranks in enumerate(zip(*gradients)):
            total = owed + torch.stack(of_ranks)
            owed = total.scatter(1, total.abs().topk(inputs[0]["k"]).indices, 0)
            for of_rank, residual in zip(steps, owed):
                of_rank |= on_rank.name_step(number, (total - owed).mean(0), residual)
        return steps

    def bound(self, trial: Trial) -> int:
        return (trial.world_size - 1) * 16 * trial.inputs[0]["k"] * num_steps(trial)

    def least(self, trial: Trial) -> int:
        n = trial.world_size
        return (n > 1) * n * 8 * trial.inputs[0]["k"] * num_steps(trial)  # they leave a rank


class OverlappedStep(GradientExercise):
    number = "3.7"
    budget = ("the buckets of my_buckets, each sent once a step; only the last bucket's bytes are left for after "
              "backward; activations of one micro-batch at a time")
    cases = tuple((f"k = {k}", {"n": n, "widths": widths, "frozen": frozen, "num_batches": k, "cap": cap})
                  for n, widths, frozen, cap, k in ((3, EQUAL, [], 160, 2), (2, SMALL, ["2.bias"], 64, 1),
                                                    (4, LARGE, ["2.bias"], 70_000, 3)))
    run = staticmethod(on_rank.overlap)

    def trials(self, seed: int) -> list[Trial]:
        """After the first one comes a trial in which gradients do not arrive in the same order on all ranks.

        Rank 1 uses the layers the last one first. Each message has the same size: gloo would end ranks otherwise.
        """
        example, first, *others = super().trials(seed)
        generator = torch.Generator().manual_seed(seed)
        mixed = trial_of(generator, 3, [4] * 5, cap=320)
        ranks = [{**rank, "turned": r == 1} for r, rank in enumerate(mixed.inputs)]
        label = f"{mixed.label}, k = 1, on rank 1 the layers are used the last one first"
        return [example, first, Trial(ranks, label), *others]

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        """The mean of the ranks' own gradients: all have equally many rows."""
        each = []
        for rank in inputs:
            model = model_of(rank)
            batch_loss(model, [torch.cat(column) for column in zip(*rank["batches"])]).backward()
            each.append(gradients_of(model))
        return [weighted_sum(each, 1 / len(inputs))] * len(inputs)

    def bound(self, trial: Trial) -> int:
        return on_rank.STEPS * super().bound(trial)

    def least(self, trial: Trial) -> int:
        return on_rank.STEPS * super().least(trial)

    def example(self) -> list[dict[str, Any]]:
        return [small([(1, slope)], cap=8) for slope in (1.0, 3.0)]

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        left = max(answer["hooks"] for answer in answers)
        return super().flaw(trial, answers, traffic) if not left else (
            f"after two steps {left} of its hooks are still there. Keep what register_post_accumulate_grad_hook "
            "returns, and remove() it when backward is over")

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        M = sum(gradient_sizes(trial.inputs[0]))
        left = [max(1 - hidden_bytes(step["order"]) / M for step in answer["steps"]) for answer in answers]
        # Nobody can hide the last bucket; nor any, where the first one waits for the last gradient.
        pars = [1.0 if rank.get("turned") else bucket_bytes(trial)[-1] / M for rank in trial.inputs]
        worst = most(left, pars)
        return [row_usage(trial, answers), num_calls(answers, on_rank.STEPS * len(bucket_bytes(trial))),
                Spent("left", left[worst], pars[worst], "share", on=" of the bytes for after backward", limit="par {}",
                      slack=1e-9, claimed=True, why=why_left(answers[worst]["steps"][0]["order"]))]


def num_steps(trial: Trial) -> int:
    """How many steps the trial of 3.5 has: one for each gradient that a rank gets."""
    return len(trial.inputs[0].get("given") or trial.inputs[0]["batches"])


def row_usage(trial: Trial, answers: list[Any]) -> Spent:
    """The rows whose activations waited for backward at the same time, beside those of the largest micro-batch."""
    return highest("held", [answer["rows"] for answer in answers], max(len(x) for x, _ in trial.inputs[0]["batches"]),
                   "row", on=" of activations", claimed=True,
                   why="one forward, then its backward, then the next micro-batch")


def bucket_bytes(trial: Trial) -> list[int]:
    """The bytes of each bucket that my_buckets makes of the gradients of this trial."""
    sizes = gradient_sizes(trial.inputs[0])
    return [sum(sizes[index] for index in bucket) for bucket in fill(sizes, trial.inputs[0]["cap"])]


def hidden_bytes(order: on_rank.Order) -> int:
    """Bytes of the messages that had begun when another gradient was computed; none where anybody waited before it."""
    last = max((place for place, (what, _) in enumerate(order) if what == "gradient"), default=0)
    if any(what == "wait" for what, _ in order[:last]):
        return 0
    hidden, waiting = 0, 0
    for what, num_bytes in order:
        if what == "gradient":
            hidden += waiting
        waiting = waiting + num_bytes if what == "begin" else 0
    return hidden


def why_left(order: on_rank.Order) -> str:
    """Why fewer bytes are hidden behind backward than could be, read off the order of events of a rank."""
    last = max((place for place, (what, _) in enumerate(order) if what == "gradient"), default=0)
    before = {what for what, _ in order[:last]}
    if "begin" not in before:
        return "no message begins before the last gradient is there: start each from a hook"
    if "wait" in before:
        return ("a rank that waits for a message computes nothing: dist.all_reduce(..., async_op=True), and wait() "
                "when backward is over")
    return "a bucket can leave as soon as it and all before it are complete"
