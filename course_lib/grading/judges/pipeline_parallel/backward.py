"""Exercise 4.5: gradients travel from the last rank to the first, and a weight that both hold gets the sum of two.

    p  ranks, r this one, each with one stage      m  micro-batches of B rows      D  width of every layer

Exercises 4.3 and 4.9: idle time as a formula where stages are not alike, and the batch that a pipeline needs.

    p  stages    m  micro-batches of a replica    v  chunks of a rank    idle = (p - 1)/(v m + p - 1) of the total time
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.judges.models import ROUNDING
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.judges.split import normal
from course_lib.grading.on_rank import pipeline_parallel as on_rank
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes
from course_lib.pipeline_parallel import gpipe, simulate


class PipelineBackward(Exercise):
    number = "4.5"
    words = "has the gradient"
    tolerance = ROUNDING
    budget = ("m messages of the size of one micro-batch's activations from each rank to the one before, and one of "
              "the weight's between the first and the last")
    operations = frozenset({"send", "recv"})
    run = staticmethod(on_rank.backward)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for p, m, B, D in ((3, 4, 2, 3), (2, 1, 3, 2), (1, 2, 2, 2), (4, 3, 64, 48)):
            weights = [normal(generator, D, D, scale=D ** -0.5) for _ in range(p)]
            weights[-1] = weights[0]
            x, targets = normal(generator, m, B, D), normal(generator, m, B, D)
            ranks = []
            for r, weight in enumerate(weights):
                bias = normal(generator, D, scale=D ** -0.5)
                ranks.append({"weight": weight, "bias": bias, "xs": list(x), "first": r == 0, "last": r == p - 1,
                              "targets": list(targets) if r == p - 1 else None})
                x = torch.tanh(nn.functional.linear(x, weight, bias))
            made.append(Trial(ranks, f"{ranks_of(p)}, {m} micro-batch{'es' * (m > 1)} of {human_bytes(B * D * 8)}"))
        return made

    def expected(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One process, the whole batch, one weight at two places."""
        layers = [[rank[name].clone().requires_grad_() for name in ("weight", "bias")] for rank in inputs]
        layers[-1][0] = layers[0][0]
        y = torch.cat(inputs[0]["xs"])
        for rank, layer in zip(inputs, layers):
            y = nn.functional.linear(y, *layer)
            y = y if rank["last"] else torch.tanh(y)
        nn.functional.mse_loss(y, torch.cat(inputs[-1]["targets"])).backward()
        return [{"weight": weight.grad, "bias": bias.grad} for weight, bias in layers]

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        allowed = bytes_needed(trial)
        busiest = max(range(1, trial.world_size), key=traffic.sent_by, default=0)
        return [Spent("sent", traffic.sent_by(rank), allowed[rank], rank=rank, note=traffic.note(),
                      slack=traffic.slack(allowed[rank]), claimed=traffic.exact) for rank in (busiest, 0)]

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        for rank, needed in enumerate(bytes_needed(trial)):
            if (sent := traffic.sent_by(rank)) < needed - traffic.slack(needed):
                return (f"rank {rank} sent {human_bytes(sent)}, where {human_bytes(needed)} is the least: send "
                        f"{'x.grad to the rank before' if rank else 'the gradient of the tied weight'}")
        return None


def bytes_needed(trial: Trial) -> list[int]:
    """Bytes that each rank sends: the gradients of all micro-batches at its boundary, nothing from the first; and from
    the first and the last that of the weight that both hold."""
    first, p = trial.inputs[0], trial.world_size
    at_boundary, tied = sum(x.nbytes for x in first["xs"]), first["weight"].nbytes * (p > 1)
    return [at_boundary * (r > 0) + tied * (r in (0, p - 1)) for r in range(p)]


class Bubble(NumberExercise):
    number = "4.3"
    budget = "13/29 of the total, 13/16 of the ideal time, for stages that cost 2, 3, 2 and 1 and 8 micro-batches"
    cases = (("stages that cost 2, 3, 2 and 1, 8 micro-batches, of the total", ([2, 3, 2, 1], 8, "total")),
             ("the same, of the ideal time", ([2, 3, 2, 1], 8, "ideal")),
             ("the slowest stage at the end, of the total", ([2, 2, 2, 5], 12, "total")),
             ("8 equal stages, 16 micro-batches, of the ideal time", ([3] * 8, 16, "ideal")),
             ("one stage", ([4], 5, "total")))

    def expected(self, stage_costs: Sequence[int], num_microbatches: int, of: str) -> float:
        plan = simulate(gpipe(len(stage_costs), num_microbatches), stage_costs, stage_costs, stage_costs)
        return plan.bubble_fraction if of == "total" else plan.bubble_of_ideal

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        costs, m = [source.randint(1, 9) for _ in range(source.randint(3, 6))], source.randint(4, 20)
        return f"stages that cost {costs}, {m} micro-batches, of the total", (costs, m, "total")


class LeastBatch(NumberExercise):
    number = "4.9"
    tolerance = (0.01, 0.0)
    unit = "exact tokens"
    budget = "within 1 %"
    LLAMA = 16_384, 8, 16  # devices, tensor parallel, stages of Llama 3 405B
    cases = (("16,384 devices, TP 8, 16 stages, 2 chunks, 8,192 tokens, 10 % idle", (*LLAMA, 2, 8192, 0.1)),
             ("the same with 8 chunks", (*LLAMA, 8, 8192, 0.1)),
             ("the same with one chunk and 5 % idle", (*LLAMA, 1, 8192, 0.05)),
             ("1,024 devices, TP 1, 4 stages, 1 chunk, 4,096 tokens, 20 % idle", (1024, 1, 4, 1, 4096, 0.2)))

    def expected(self, num_devices: int, tensor_parallel: int, p: int, v: int, tokens: int, idle: float) -> float:
        replicas = num_devices / (tensor_parallel * p)
        m = math.ceil((p - 1) * (1 - idle) / (v * idle) - 1e-9)  # a hair above a whole number is that number
        return replicas * m * tokens

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        p, v, idle = source.randint(4, 12), source.randint(1, 3), source.randint(50, 200) / 1000
        asked = 4 * p * source.randint(3, 60), 4, p, v, 2048, idle
        return f"{asked[0]:,} devices, TP 4, {p} stages, {v} chunks, 2,048 tokens, {idle:.1%} idle", asked
