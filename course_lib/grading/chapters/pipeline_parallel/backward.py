"""Exercise 4.5: gradients travel from the last rank to the first, and a weight that both hold gets the sum of two.

    p  ranks, each with one stage      m  micro-batches of B rows      D  width of every layer
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.chapters.models import (
    ROUNDING,
    Gradients,
    Inputs,
    combined,
    gradients_of,
    model_of,
    own_gradients,
    trial_of,
)
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount

NOTHING_ELSE = ("only the gradient of x travels, to the rank before, and that of the tied weight, once, when it is "
                "complete")
TIED = "weight"  # of the first layer of a stage


class PipelineBackward(Exercise):
    number = "4.5"
    function = "my_pipeline_backward"
    points = 4
    words = "has the gradient"
    tolerance = ROUNDING
    right = "the gradients are right"
    budget = ("m messages of the size of one micro-batch's activations from each rank to the one before, and one of "
              "the weight's between the first and the last")
    operations = frozenset({"send", "recv"})
    hints = (
        "For each micro-batch three questions: where does the gradient of y come from, what does backward make of it, "
        "and who needs the gradient of x? The loss of the batch is a mean over m micro-batches. And when is the "
        "gradient of the tied weight complete?",
        "The last rank begins with its loss, divided by m; every other one receives the gradient of y from the next "
        "rank and gives it to y.backward. All but the first send what is then in x.grad. After the loop the first and "
        "the last exchange their parts of the tied gradient, one sending first and the other receiving first, and both "
        "add.",
        "for i, (x, y) in enumerate(saved):\n"
        "    if r == p - 1:\n"
        "        (nn.functional.mse_loss(y, targets[i]) / ...).backward()\n"
        "    else:\n"
        "        ...  # receive into torch.empty_like(y), then y.backward(...)\n"
        "    if r > 0:\n"
        "        dist.send(..., r - 1)\n"
        "if tied is not None:\n"
        "    other = torch.empty_like(tied)\n"
        "    ...  # r == 0 receives first; what it sends then must not have the other part in it yet\n"
        "    tied.grad += other",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for p, m, B, D in ((3, 4, 2, 3), (2, 1, 3, 2), (1, 2, 2, 2), (4, 3, 64, 48)):
            inputs = trial_of(generator, 1, [D] * (p + 1), num_batches=m, num_rows=B).inputs[0]
            inputs["weights"][f"{first_of(p - 1)}.weight"] = inputs["weights"]["0.weight"]
            label = f"{ranks_of(p)}, {m} micro-batch{'es' * (m > 1)} of {amount(B * D * 8)}"
            made.append(Trial([{**inputs, "rank": r} for r in range(p)], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        """What came in is computed here, so that all that is sent, the reader's function sends."""
        r, last = inputs["rank"], len(inputs["widths"]) - 2
        model, saved = model_of(inputs), []
        for x, _ in inputs["batches"]:
            with torch.no_grad():
                x = model[:first_of(r)](x)
            x = x.clone().requires_grad_(r > 0)
            saved.append((x, stage_of(model, r)(x)))
        tied = stage_of(model, r)[0].weight if last and r in (0, last) else None
        function(saved, [y.clone() for _, y in inputs["batches"]] if r == last else None, tied)
        return gradients_of(stage_of(model, r))

    def expected(self, inputs: Inputs) -> list[Gradients]:
        return tied(by_stage(inputs[0], 1 / len(inputs[0]["batches"])))

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Gradients]]]:
        one, p, m = inputs[0], len(inputs), len(inputs[0]["batches"])
        parts = by_stage(one, 1 / m)
        if p > 1:
            yield ("the tied weight has one rank's part of its gradient: the first and the last rank each have the "
                   "other part, and both need the sum", parts)
            yield ("the first rank sends the sum back, and the last one adds it to its own part, which is in it "
                   "already: send what belongs to this rank "
                   "alone", tied(parts, last=lambda own, other: other + 2 * own))
            yield ("the last rank sends the sum back, and the first one adds it to its own part, which is in it "
                   "already: send what belongs to this rank "
                   "alone", tied(parts, first=lambda own, other: other + 2 * own))
            yield ("the two parts of the tied gradient are averaged: they belong to one weight at two places of one "
                   "loss, so they add up", tied(parts, *[lambda own, other: (own + other) / 2] * 2))
            yield ("only the first rank has the sum for the tied weight: the last one steps its copy as well, and the "
                   "two would part", tied(parts, last=lambda own, other: own))
            yield ("only the last rank has the sum for the tied weight: the first one steps its copy as well, and the "
                   "two would part", tied(parts, first=lambda own, other: own))
            yield ("the tied weight has the other rank's part of its gradient: both need the sum of the two",
                   tied(parts, *[lambda own, other: other] * 2))
        for scale, gradients in ((1, by_stage(one, 1.0)), (m, by_stage(one, 1 / m**2))):
            yield ("every gradient is m times too large: backward adds up m means, and one mean is asked, so divide "
                   "each loss by m" if scale == 1 else "gradients are divided by m twice: the loss alone has to be",
                   tied(gradients))
        yield ("every rank divides by m, and what comes from the next rank is divided already: only the loss is, once",
               tied([combined([gradients], m ** -(p - r)) for r, gradients in enumerate(by_stage(one, 1.0))]))
        yield ("only the last micro-batch is in the gradients: they add up by themselves, do not set them to zero",
               tied(by_stage(one, 1 / m, [m - 1])))
        yield ("only the first micro-batch is in the gradients: all of `saved` has to go backward",
               tied(by_stage(one, 1 / m, [0])))
        crossed = [[x, y] for (x, _), (_, y) in zip(one["batches"], reversed(one["batches"]))]
        yield ("the micro-batches and their targets are taken in opposite orders",
               tied(by_stage({**one, "batches": crossed}, 1 / m)))
        yield ("only the last rank has gradients: the others receive theirs from the next rank",
               [*map(dict.fromkeys, parts[:-1]), parts[-1]])
        if p > 1:
            yield ("the gradient that was received is not used: y.backward(gradient) takes it",
                   tied([*with_gradients(one, lambda i, y: torch.ones_like(y))[:-1], parts[-1]]))
            yield ("the gradient that was received is passed on as it is: the rank before needs that of x, which "
                   "backward has left in x.grad",
                   tied([*with_gradients(one, lambda i, y: for_the_last(one, i) / m)[:-1], parts[-1]]))

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        allowed = self.allowed(trial)
        busiest = max(range(1, trial.world_size), key=traffic.sent_by, default=0)
        return [Spent("sent", traffic.sent_by(rank), allowed[rank], rank=rank, why=NOTHING_ELSE, note=traffic.note(),
                      slack=traffic.slack(allowed[rank]), claimed=traffic.exact) for rank in (busiest, 0)]

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        for rank, needed in enumerate(self.allowed(trial)):
            sent = traffic.sent_by(rank)
            if sent < needed - traffic.slack(needed):
                return (f"rank {rank} sent {amount(sent)}, where {amount(needed)} is the least that can carry them: "
                        f"send {'x.grad to the rank before' if rank else 'the gradient of the tied weight'}")
        return None

    @staticmethod
    def allowed(trial: Trial) -> list[int]:
        """Bytes that each rank sends: the gradients of all micro-batches at its boundary, nothing from the first; and
        from the first and the last that of the weight that both hold."""
        at_a_boundary = sum(x.nbytes for x, _ in trial.inputs[0]["batches"])
        sent = [0] + [at_a_boundary] * (trial.world_size - 1)
        if trial.world_size > 1:
            sent[0] += trial.inputs[0]["weights"]["0.weight"].nbytes
            sent[-1] += trial.inputs[0]["weights"]["0.weight"].nbytes
        return sent


def own_and_other(own: Tensor, other: Tensor) -> Tensor:
    return own + other


def tied(parts: list[Gradients], first: Callable[[Tensor, Tensor], Tensor] = own_and_other,
         last: Callable[[Tensor, Tensor], Tensor] = own_and_other) -> list[Gradients]:
    """The gradients of all stages after the first and the last exchanged theirs of the weight that both hold.

    first, last: what such a rank makes of its own part and the other one.
    """
    if len(parts) == 1:
        return parts
    names = "0.weight", f"{first_of(len(parts) - 1)}.weight"
    a, b = parts[0][names[0]], parts[-1][names[1]]
    made = [dict(gradients) for gradients in parts]
    made[0][names[0]], made[-1][names[1]] = first(a, b), last(b, a)
    return made


def first_of(rank: int) -> int:
    """Where the layers of a rank's stage begin: each has a linear one and, but for the last, a tanh."""
    return 2 * rank


def stage_of(model: nn.Sequential, rank: int) -> nn.Sequential:
    return model[first_of(rank):first_of(rank + 1)]


def by_stage(inputs: dict[str, Any], scale: float, microbatches: Iterable[int] | None = None) -> list[Gradients]:
    """Gradients of each rank's stage for the sum of the micro-batches' mean losses, times `scale`."""
    microbatches = range(len(inputs["batches"])) if microbatches is None else microbatches
    whole = combined([own_gradients(inputs, microbatches)], scale)
    model = model_of(inputs)
    return [{name: whole[name] for name, _ in stage_of(model, r).named_parameters()}
            for r in range(len(inputs["widths"]) - 1)]


def with_gradients(inputs: dict[str, Any], gradient: Callable[[int, Tensor], Tensor]) -> list[Gradients]:
    """Gradients of each stage if `gradient(micro-batch, y)` came back to it."""
    found = []
    for r in range(len(inputs["widths"]) - 1):
        model = model_of(inputs)
        for i, (x, _) in enumerate(inputs["batches"]):
            with torch.no_grad():
                x = model[:first_of(r)](x)
            y = stage_of(model, r)(x)
            y.backward(gradient(i, y))
        found.append(gradients_of(stage_of(model, r)))
    return found


def for_the_last(inputs: dict[str, Any], i: int) -> Tensor:
    """The gradient of what comes into the last stage, for the mean loss of micro-batch i."""
    model, (x, y) = model_of(inputs), inputs["batches"][i]
    last = len(inputs["widths"]) - 2
    with torch.no_grad():
        x = model[:first_of(last)](x)
    x = x.clone().requires_grad_()
    nn.functional.mse_loss(stage_of(model, last)(x), y).backward()
    return x.grad
