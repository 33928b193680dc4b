"""Exercise 3.7: a whole step whose messages leave while backward is at work. The judge's evidence is a timeline.

What counts is the order of its events on each rank, never how long they took, so that a busy machine fails nobody:

    gradient ... begin ... gradient     a message that had begun when another gradient was still computed is hidden
    gradient ... begin ... wait         one that the rank waits for first is not, nor one that begins after the last
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.calls import num_calls, record_calls
from course_lib.grading.chapters.data_parallel.averages import BucketedAverage, GradientExercise
from course_lib.grading.chapters.models import (
    EQUAL,
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
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import Spent, most

STEPS = 2  # what the first one leaves behind shows in the second
Order = list[list[Any]]  # of one step: ["gradient", its parameter], ["begin", bytes] and ["wait", 0], as they came


class OverlappedStep(GradientExercise):
    number = "3.7"
    function = "my_overlapped_step"
    points = 5
    budget = ("the buckets of my_buckets, each sent once a step; only the last bucket's bytes are left for after "
              "backward")
    hints = (
        "A parameter's register_post_accumulate_grad_hook(hook) calls hook(parameter) when its .grad is complete. "
        "Which backward of the k is the one whose gradients may leave? And when is a whole bucket complete?",
        "Backward of the first k - 1 micro-batches comes first, without any hook. Then give each parameter a hook "
        "that takes it out of its bucket's set of missing ones; who finds the set empty puts the bucket together and "
        "starts dist.all_reduce(flat, async_op=True). Keep the handles, and remove() each after the last backward.",
        "for bucket in buckets: missing = set(bucket), then def gradient_is_ready(parameter, bucket=bucket, "
        "missing=missing): missing.discard(parameter); if not missing: flat = (as in 3.3), and "
        "under_way.append((bucket, flat, dist.all_reduce(...))). What registers it: handles += "
        "[parameter.register_post_accumulate_grad_hook(gradient_is_ready) for parameter in bucket].",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        kinds = ((3, EQUAL, [], 160, 2), (2, SMALL, ["2.bias"], 64, 1), (4, LARGE, ["2.bias"], 70_000, 3))
        return [trial_of(generator, n, widths, frozen, num_batches=k, cap=cap) for n, widths, frozen, cap, k in kinds]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        model, steps = model_of(inputs), []
        for _ in range(STEPS):
            model.zero_grad(set_to_none=False)
            order, calls = watched(function, model, inputs)
            steps.append({"order": order, "calls": calls})
        return {"gradients": gradients_of(model), "steps": steps, "calls": [c for step in steps for c in step["calls"]]}

    def expected(self, inputs: Inputs) -> list[Gradients]:
        k = len(inputs[0]["batches"])
        return [combined([own_gradients(rank, range(k)) for rank in inputs], 1 / len(inputs) / k)] * len(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        n, k = len(inputs), len(inputs[0]["batches"])
        own = [own_gradients(rank, range(k)) for rank in inputs]
        yield ("every gradient is k times too large: backward adds up k means, so divide each loss by k",
               [combined(own, 1 / n)] * n)
        if k > 1:
            mean, before = (combined([own_gradients(rank, range(upto)) for rank in inputs], 1 / n / k)
                            for upto in (k, k - 1))
            late = {bucket[-1] for bucket in BucketedAverage.buckets(inputs[0])}
            yield ("the gradient that completes a bucket lacks the last micro-batch: Tensor.register_hook comes before "
                   "it is added to .grad, register_post_accumulate_grad_hook after it",
                   [{name: before[name] if name in late else mean[name] for name in mean}] * n)
            yield "the last micro-batch is not in the mean: send when its gradients are there, too", [before] * n
        yield ("only the last micro-batch is in the mean: let gradients add up", [
            combined([own_gradients(rank, [k - 1]) for rank in inputs], 1 / n / k)] * n)
        yield ("every rank has its own gradients: no message was started, or none is in under_way",
               [combined([each], 1 / k) for each in own])

    def bound(self, trial: Trial) -> int:
        return STEPS * super().bound(trial)

    def par(self, trial: Trial) -> float:
        """The share of the bytes that nobody can hide: the last bucket waits for the last gradient."""
        return BucketedAverage().messages(trial.inputs[0])[-1] / gradient_bytes(trial.inputs[0])

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        first, second = (max(len(answer["steps"][step]["calls"]) for answer in answers) for step in range(STEPS))
        if second > first:
            return (f"the second step made {second} calls, the first one {first}: its hooks are still there. Keep what "
                    "register_post_accumulate_grad_hook returns, and remove() it when backward is over")
        return None

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        left = [max(1 - hidden_bytes(step["order"]) / gradient_bytes(trial.inputs[0]) for step in answer["steps"])
                for answer in answers]
        buckets = BucketedAverage().messages(trial.inputs[0])
        return [num_calls(answers, STEPS * len(buckets), "one for each bucket and step, when its last gradient is "
                          "complete, and none before the last micro-batch"),
                Spent("left", max(left), self.par(trial), "share", on=" of the bytes for after backward",
                      rank=None, limit="par {}", slack=1e-9, claimed=True, why=self.held_back(answers[most(left)]))]

    @staticmethod
    def held_back(answer: dict[str, Any]) -> str:
        """Why less is hidden than could be."""
        order = answer["steps"][0]["order"]
        waits, last = places(order, "wait"), max(places(order, "gradient"), default=-1)
        if not any(begin < last for begin in places(order, "begin")):
            return "no message begins before the last gradient is there: start each from a hook"
        if any(wait < last for wait in waits):
            return ("a rank that waits for a message computes nothing: dist.all_reduce(..., async_op=True), and wait() "
                    "when backward is over")
        return "a bucket can leave as soon as the last of its gradients is complete"


def watched(function: Callable, model: nn.Module, inputs: dict[str, Any]) -> tuple[Order, list[list[Any]]]:
    """On a rank: one step of `function`, in what order things happened in it, and its calls."""
    from course_lib.runtime import record_timeline, span  # starts nothing; but a judge does without it

    def computed(name: str) -> Callable[[Tensor], None]:
        def mark(_: Tensor) -> None:  # before anything else hears of this gradient
            with span(name):
                pass
        return mark

    handles = [parameter.register_hook(computed(name)) for name, parameter in model.named_parameters()
               if parameter.requires_grad]
    with record_timeline() as timeline:
        _, calls = record_calls(function, model, inputs["batches"], inputs["cap"])
    for handle in handles:
        handle.remove()
    kinds = {"compute": "gradient", "communication": "begin", "waiting": "wait"}
    events = sorted(timeline.events + timeline.waits, key=lambda event: event.start_s)
    return calls_apart([[kinds[event.lane], event.labels.get("bytes", event.name)] for event in events]), calls


def calls_apart(order: Order) -> Order:
    """Without the time that it takes to make a call: the first wait after each begin."""
    kept, calling = [], 0
    for what, detail in order:
        calling += what == "begin"
        if what == "wait" and calling:
            calling -= 1
        else:
            kept.append([what, detail])
    return kept


def places(order: Order, kind: str) -> list[int]:
    return [place for place, (what, _) in enumerate(order) if what == kind]


def hidden_bytes(order: Order) -> int:
    """Bytes of the messages that had begun when another gradient was computed, and nobody had waited for them yet."""
    hidden, waiting = 0, 0
    for what, detail in order:
        if what == "begin":
            waiting += detail
        elif what == "gradient":
            hidden, waiting = hidden + waiting, 0
        else:
            waiting = 0
    return hidden
