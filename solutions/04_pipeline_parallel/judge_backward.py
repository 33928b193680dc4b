"""Exercise 4.5: gradients travel from the last rank to the first, and a weight that both hold gets the sum of two.

    p  ranks, r this one, each with one stage      m  micro-batches of B rows      D  width of every layer

Exercises 4.3 and 4.9: idle time as a formula where stages are not alike, and the batch that a pipeline needs.

    p  stages    m  micro-batches of a replica    v  chunks of a rank    idle = (p - 1)/(v m + p - 1) of the total time
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.gradients import ROUNDING, doubles, normal
from course_lib.grading.kinds import NumberExercise
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes
from course_lib.pipeline_parallel import gpipe, simulate

from . import on_rank


class PipelineBackward(Exercise):
    number = "4.5"
    words = "has the gradient"
    compared = "gradients"
    tolerance = ROUNDING
    budget = ("m messages of the size of one micro-batch's activations from each rank to the one before, and one of "
              "the weight's between the first and the last")
    operations = frozenset({"send", "recv"})
    run = staticmethod(on_rank.backward)
    sizes = (3, 4, 2, 3), (2, 1, 3, 2), (1, 2, 2, 2), (4, 3, 64, 48)

    def draw_trial(self, generator: torch.Generator, p: int, m: int, B: int, D: int) -> Trial:
        weights = [normal(generator, D, D, scale=D ** -0.5) for _ in range(p)]
        weights[-1] = weights[0]
        x, targets = normal(generator, m, B, D), normal(generator, m, B, D)
        ranks = []
        for r, weight in enumerate(weights):
            bias = normal(generator, D, scale=D ** -0.5)
            ranks.append({"weight": weight, "bias": bias, "xs": list(x), "first": r == 0, "last": r == p - 1,
                          "targets": list(targets) if r == p - 1 else None})
            x = torch.tanh(nn.functional.linear(x, weight, bias))
        return Trial(ranks, f"{ranks_of(p)}, {m} micro-batch{'es' * (m > 1)} of {human_bytes(B * D * 8)}")

    def example_trial(self) -> Trial:
        """One number everywhere: the tied weight is 1, what comes into the last stage tanh(2 w + bias) = 0.5."""
        def one(value: float) -> torch.Tensor:
            return doubles([[value]])

        weight, into_last = one(1.0), one(0.5)
        first = {"weight": weight, "bias": torch.atanh(into_last)[0] - 2, "xs": [one(2.0)] * 2, "first": True,
                 "last": False, "targets": None}
        last = {"weight": weight, "bias": one(0.0)[0], "xs": [torch.tanh(torch.atanh(into_last))] * 2, "first": False,
                "last": True, "targets": [one(0.0), one(-1.0)]}
        return Trial([first, last], "the example, 2 ranks, 2 micro-batches")

    def solve(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One process, the whole batch, one weight at two places."""
        layers = [[rank[name].clone().requires_grad_() for name in ("weight", "bias")] for rank in inputs]
        layers[-1][0] = layers[0][0]
        y = torch.cat(inputs[0]["xs"])
        for rank, layer in zip(inputs, layers):
            y = nn.functional.linear(y, *layer)
            y = y if rank["last"] else torch.tanh(y)
        nn.functional.mse_loss(y, torch.cat(inputs[-1]["targets"])).backward()
        return [{"weight": weight.grad, "bias": bias.grad} for weight, bias in layers]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        allowed = needed_bytes(trial)
        busiest = max(range(1, trial.world_size), key=traffic.sent_by, default=0)
        return [Spent("sent", traffic.sent_by(rank), allowed[rank], rank=rank, note=traffic.note(),
                      slack=traffic.slack(allowed[rank]), claimed=traffic.exact) for rank in (busiest, 0)]

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        for rank, needed in enumerate(needed_bytes(trial)):
            if (sent := traffic.sent_by(rank)) < needed - traffic.slack(needed):
                return (f"rank {rank} sent {human_bytes(sent)}, where {human_bytes(needed)} is the least: send "
                        f"{'x.grad to the rank before' if rank else 'the gradient of the tied weight'}")
        return next((f"rank {rank} {words}" for rank, answer in enumerate(answers)
                     for words in disorder(rank, trial, answer)), None)


def disorder(rank: int, trial: Trial, answer: dict[str, Any]) -> Iterator[str]:
    """What makes the ranks wait for one another: no message for each micro-batch, or not as soon as it is there.

    Room for one: a rank may have computed the next gradient before it sends this one, and received one more ahead.
    """
    xs, order = trial.inputs[rank]["xs"], answer["order"]
    computed = [number for number, *_ in order]
    if computed != sorted(computed):
        yield f"computed the gradients of the micro-batches in the order {computed}: first one first"
    sent = [op == "send" and peer == rank - 1 and num_bytes == xs[0].nbytes
            for op, peer, num_bytes in answer["messages"]]
    tied_too = trial.world_size == 2 and xs[0].nbytes == trial.inputs[0]["weight"].nbytes
    if rank and sum(sent) != len(xs) + tied_too:
        yield (f"sent {sum(sent) - tied_too} messages of one micro-batch's size to the rank before, which waits for "
               f"{len(xs)}: with all of them in one it can begin only when this one is through")
    for turn, (_, called, received) in enumerate(order):
        if rank and sum(sent[:called]) < turn - 1:
            yield (
                f"had sent {sum(sent[:called])} gradients on when it computed number {turn}, counted from 0: send each "
                "as soon as it is there, or the rank before has nothing to do")
        if received > turn + 2:
            yield (
                f"had received {received} gradients when it computed number {turn}, counted from 0: take each back as "
                "soon as it comes, or the ranks work one after the other")


def needed_bytes(trial: Trial) -> list[int]:
    """Bytes that each rank sends: the gradients of all micro-batches at its boundary, nothing from the first; and from
    the first and the last that of the weight that both hold."""
    first, p = trial.inputs[0], trial.world_size
    at_boundary, tied = sum(x.nbytes for x in first["xs"]), first["weight"].nbytes * (p > 1)
    return [at_boundary * (r > 0) + tied * (r in (0, p - 1)) for r in range(p)]


class Bubble(NumberExercise):
    number = "4.3"
    budget = (
        "check: 13/29 of the total, 13/16 of the ideal time, for stages that cost 2, 3, 2 and 1 and 8 micro-batches")
    cases = (("the example, stages that cost 1 and 1, of the total", ([1, 1], 2, "total")),
             ("the example, of the ideal time", ([1, 1], 2, "ideal")),
             ("the second example, stages that cost 1 and 2, of the total", ([1, 2], 2, "total")),
             ("the second example, of the ideal time", ([1, 2], 2, "ideal")),
             ("stages that cost 2, 3, 2 and 1, 8 micro-batches, of the total", ([2, 3, 2, 1], 8, "total")),
             ("the same, of the ideal time", ([2, 3, 2, 1], 8, "ideal")),
             ("the slowest stage at the end, of the total", ([2, 2, 2, 5], 12, "total")),
             ("8 equal stages, 16 micro-batches, of the ideal time", ([3] * 8, 16, "ideal")),
             ("one stage", ([4], 5, "total")))

    def solve(self, stage_costs: Sequence[int], num_microbatches: int, of: str) -> float:
        plan = simulate(gpipe(len(stage_costs), num_microbatches), stage_costs, stage_costs, stage_costs)
        return plan.bubble_fraction if of == "total" else plan.bubble_of_ideal

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        costs, m = [source.randint(1, 9) for _ in range(source.randint(3, 6))], source.randint(4, 20)
        return f"stages that cost {costs}, {m} micro-batches, of the total", (costs, m, "total")


class LeastBatch(NumberExercise):
    number = "4.9"
    unit = "exact tokens"
    budget = "the smallest batch, to the token"
    LLAMA = 16_384, 8, 16  # devices, tensor parallel, stages of Llama 3 405B
    cases = (("the example, 8 devices", (8, 2, 2, 1, 100, 0.25)),
             ("16,384 devices, TP 8, 16 stages, 2 chunks, 8,192 tokens, 10 % idle", (*LLAMA, 2, 8192, 0.1)),
             ("the same with 8 chunks", (*LLAMA, 8, 8192, 0.1)),
             ("the same with one chunk and 7 % idle", (*LLAMA, 1, 8192, 0.07)),
             ("1,024 devices, TP 1, 4 stages, 1 chunk, 4,096 tokens, 22 % idle", (1024, 1, 4, 1, 4096, 0.22)))

    def solve(self, num_devices: int, tensor_parallel: int, p: int, v: int, tokens: int, idle: float) -> int:
        return num_devices // (tensor_parallel * p) * math.ceil(micro_batches(p, v, idle)) * tokens

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        def is_clear(p: int, v: int, idle: float) -> bool:
            """Whether nobody's order of operations, nor forgetting to round, gives another whole number."""
            needed = micro_batches(p, v, idle)
            return needed < 20 and 0.05 < needed % 1 < 0.95

        p, v, idle = next(each for _ in iter(int, 1) if is_clear(*(each := (
            source.randint(4, 12), source.randint(1, 3), source.randint(50, 300) / 1000))))
        asked = 4 * p * source.randint(3, 60), 4, p, v, 2048, idle
        return f"{asked[0]:,} devices, TP 4, {p} stages, {v} chunks, 2,048 tokens, {idle:.1%} idle", asked


def micro_batches(p: int, v: int, idle: float) -> float:
    """The number m of micro-batches with which (p - 1)/(v m + p - 1) is `idle`; no whole number as a rule."""
    return (p - 1) * (1 - idle) / (v * idle)
