"""Exercise 4.3: the bubble as a formula, by both conventions."""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise


class Bubble(NumberExercise):
    number = "4.3"
    function = "my_bubble"
    points = 2
    budget = "3/11 of the total, 3/8 of the ideal time, for 4 ranks and 8 micro-batches"
    hints = (
        "Measure time in what a rank needs for one micro-batch on one of its chunks. How much has each rank to do, and "
        "how long does it wait for the first micro-batch to come down and the last gradient to come up, together?",
        "A rank works v m and waits p - 1: (p - 1) / (v m) of the ideal time, (p - 1) / (v m + p - 1) of the total.",
    )
    cases = (("4 ranks, 8 micro-batches, of the total", (4, 8, 1, "total")),
             ("4 ranks, 8 micro-batches, of the ideal time", (4, 8, 1, "ideal")),
             ("8 ranks, 16 micro-batches, 4 chunks, of the total", (8, 16, 4, "total")),
             ("8 ranks, 16 micro-batches, 4 chunks, of the ideal time", (8, 16, 4, "ideal")),
             ("one rank", (1, 5, 1, "total")))

    def expected(self, num_ranks: int, num_microbatches: int, num_chunks: int, of: str) -> float:
        from course_lib.pipeline_parallel import interleaved_1f1b, simulate

        plan = simulate(interleaved_1f1b(num_ranks, num_microbatches, num_chunks))
        return plan.bubble_fraction if of == "total" else plan.bubble_of_ideal

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        p, v, groups = source.randint(3, 6), source.randint(2, 3), source.randint(2, 5)
        return f"{p} ranks, {groups * p} micro-batches, {v} chunks, of the total", (p, groups * p, v, "total")

    def mistakes(self, num_ranks: int, num_microbatches: int, num_chunks: int, of: str
                 ) -> Iterable[tuple[str, float]]:
        p, m, v = num_ranks, num_microbatches, num_chunks
        other = (p - 1) / (v * m) if of == "total" else (p - 1) / (v * m + p - 1)
        yield (f"this is the share of the {'ideal time' if of == 'total' else 'total'}: here the "
               f"{'total' if of == 'total' else 'ideal time'} is asked, with{'' if of == 'total' else 'out'} the idle "
               "time in the denominator", other)
        whole = p - 1 if of == "total" else 0
        yield ("the chunks are left out: with v of them the first one of each micro-batch is done v times sooner",
               (p - 1) / (m + whole))
        yield "the idle time is multiplied by v: chunks make it shorter", v * (p - 1) / (m + v * whole)
        yield ("a rank waits p - 1 times, not p: it does not wait for itself",
               p / (v * m + (p if of == "total" else 0)))
        yield ("waiting counts twice, 2(p - 1): forward and backward each wait p - 1, but in units of one half",
               2 * (p - 1) / (v * m + 2 * whole))
        yield "this is the naive pipeline, (p - 1)/p: micro-batches are left out", (p - 1) / p
        yield "this is the share of useful work: 1 minus it is asked", v * m / (v * m + p - 1)
        yield "these are per cent: a share is asked", 100 * self.expected(p, m, v, of)
