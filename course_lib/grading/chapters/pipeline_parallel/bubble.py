"""Exercises 4.3 and 4.9: idle time as a formula where stages are not alike, and the batch that a pipeline needs."""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from course_lib.grading.numbers import NumberExercise


class Bubble(NumberExercise):
    number = "4.3"
    function = "my_bubble"
    points = 2
    budget = "13/29 of the total, 13/16 of the ideal time, for stages that cost 2, 3, 2 and 1 and 8 micro-batches"
    hints = (
        "Follow the first micro-batch: how long until it is through all stages? Then follow the slowest stage: at what "
        "distance do the others come out? Forward and backward behave alike, so think of both as one passage.",
        "The first micro-batch passes every stage once, and each of the m - 1 others ends one slowest stage later. "
        "That is how long the step takes. Of the p ranks together, how much of p times that is work?",
        "step = ... + (num_microbatches - 1) * ...\n"
        "work = ...  # of all ranks together\n"
        "idle = len(stage_costs) * step - work\n"
        "return idle / (... if of == \"total\" else ...)",
    )
    cases = (("stages that cost 2, 3, 2 and 1, 8 micro-batches, of the total", ([2, 3, 2, 1], 8, "total")),
             ("the same, of the ideal time", ([2, 3, 2, 1], 8, "ideal")),
             ("the slowest stage at the end, of the total", ([2, 2, 2, 5], 12, "total")),
             ("8 equal stages, 16 micro-batches, of the ideal time", ([3] * 8, 16, "ideal")),
             ("one stage", ([4], 5, "total")))

    def expected(self, stage_costs: Sequence[int], num_microbatches: int, of: str) -> float:
        from course_lib.pipeline_parallel import gpipe, simulate

        plan = simulate(gpipe(len(stage_costs), num_microbatches), stage_costs, stage_costs, stage_costs)
        return plan.bubble_fraction if of == "total" else plan.bubble_of_ideal

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        costs, m = [source.randint(1, 9) for _ in range(source.randint(3, 6))], source.randint(4, 20)
        return f"stages that cost {costs}, {m} micro-batches, of the total", (costs, m, "total")

    def mistakes(self, stage_costs: Sequence[int], num_microbatches: int, of: str) -> Iterable[tuple[str, float]]:
        p, m, once, slowest = len(stage_costs), num_microbatches, sum(stage_costs), max(stage_costs)
        work = m * once

        def share(step: float, of: str = of) -> float:
            return (p * step - work) / (p * step if of == "total" else work)

        right = once + (m - 1) * slowest
        other, without = ("ideal", "") if of == "total" else ("total", "out")
        yield (f"this is the share of the {'ideal time' if other == 'ideal' else 'total'}: here the "
               f"{'ideal time' if of == 'ideal' else 'total'} is asked, with{without} the idle time in the denominator",
               share(right, other))
        yield ("this takes all stages for equally long, as in (p - 1)/(m + p - 1): all others keep the pace of the "
               "slowest", share(once + (m - 1) * once / p))
        yield ("filling and draining the line takes each stage's own time, not p - 1 times the slowest's",
               share((m + p - 1) * slowest))
        yield ("the slowest stage is counted m times beside the first passage, which it is a part of: m - 1 others "
               "follow", share(once + m * slowest))
        yield "the work is that of one micro-batch: there are m", (p * right - once) / (p * right if of == "total"
                                                                                        else once)
        yield "this is the share of useful work: 1 minus it is asked", work / (p * right)
        yield "these are per cent: a share is asked", 100 * share(right)


class LeastBatch(NumberExercise):
    number = "4.9"
    function = "my_least_batch"
    points = 2
    tolerance = (0.01, 0.0)
    unit = "exact tokens"
    budget = "within 1 %"
    hints = (
        "Which of these devices work on one sequence together? What is left are replicas, and each has to have enough "
        "micro-batches of its own.",
        "A replica takes tensor_parallel * num_stages devices. The idle share (p - 1)/(v m + p - 1) is at most `idle` "
        "from some m on: solve for m, and take the next whole number. A batch has m sequences for each replica.",
        "replicas = num_devices / (...)\nm = math.ceil((num_stages - 1) * (1 - idle) / (...))\n"
        "return replicas * m * ...",
    )
    LLAMA = 16_384, 8, 16  # devices, tensor parallel, stages of Llama 3 405B
    cases = (("16,384 devices, TP 8, 16 stages, 2 chunks, 8,192 tokens, 10 % idle", (*LLAMA, 2, 8192, 0.1)),
             ("the same with 8 chunks", (*LLAMA, 8, 8192, 0.1)),
             ("the same with one chunk and 5 % idle", (*LLAMA, 1, 8192, 0.05)),
             ("1,024 devices, TP 1, 4 stages, 1 chunk, 4,096 tokens, 20 % idle", (1024, 1, 4, 1, 4096, 0.2)))

    def expected(self, num_devices: int, tensor_parallel: int, num_stages: int, num_chunks: int, sequence_length: int,
                 idle: float) -> float:
        replicas = num_devices / (tensor_parallel * num_stages)
        return replicas * self.least(num_stages, num_chunks, idle) * sequence_length

    @staticmethod
    def least(p: int, v: int, idle: float) -> int:
        """The fewest micro-batches of a replica. A hair below a whole number is that number."""
        return math.ceil((p - 1) * (1 - idle) / (v * idle) - 1e-9)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        p, v, idle = source.randint(4, 12), source.randint(1, 3), source.randint(50, 200) / 1000
        asked = 4 * p * source.randint(3, 60), 4, p, v, 2048, idle
        return f"{asked[0]:,} devices, TP 4, {p} stages, {v} chunks, 2,048 tokens, {asked[-1]:.1%} idle", asked

    def mistakes(self, num_devices: int, tensor_parallel: int, num_stages: int, num_chunks: int, sequence_length: int,
                 idle: float) -> Iterable[tuple[str, float]]:
        p, v, each = num_stages, num_chunks, num_devices / (tensor_parallel * num_stages)
        m = self.least(p, v, idle)
        yield "that is for one replica: all of them need as many", m * sequence_length
        yield ("every stage is taken for a replica: num_stages ranks work on one sequence, so divide by them",
               each * p * m * sequence_length)
        yield ("tensor parallel ranks are taken for replicas: they work on the same sequence, so divide by them",
               each * tensor_parallel * m * sequence_length)
        yield ("the chunks are left out: with v of them a bubble is v times shorter",
               each * self.least(p, 1, idle) * sequence_length)
        yield ("a share of the ideal time was taken for one of the total: idle = (p - 1)/(v m + p - 1)",
               each * math.ceil((p - 1) / (v * idle) - 1e-9) * sequence_length)
        yield "these are sequences: tokens are asked", each * m
        yield "this is the batch in which that share of the time is work, and the rest idle", each * self.least(
            p, v, 1 - idle) * sequence_length
