"""Exercises 1.1 to 1.4: bytes, days, utilisation and the parallel share as numbers.

Exercise 1.6, a design question: how many nodes to order. Time and memory both ask for devices.

Exercise 1.5: a reader on every rank that takes its own rows.
"""

import math
import random
from typing import Any

import torch
from torch import Tensor

from course_lib.facts import accelerator, model
from course_lib.grading.exercise import SentBytes, Trial
from course_lib.grading.kinds import NumberExercise, TensorExercise
from course_lib.grading.spent import Spent, highest
from course_lib.why_distribute import fit_amdahl, training_days, training_flops, training_memory, utilisation

GPT3_N, GPT3_D = model("GPT-3").parameters.value, model("GPT-3").tokens.value
A100_TFLOPS = accelerator("A100").peak_flops_per_s() / 1e12
SIX_DIGITS = (5e-6, 1e-12)  # what the text asks for


class TrainingBytes(NumberExercise):
    number = "1.1"
    budget = "16 bytes a parameter on one device; the ZeRO paper's table on more"
    unit = "exact bytes"
    cases = (*((f"the example, 7.5B, stage {stage} on 64 devices", (7.5e9, stage, 64)) for stage in range(4)),
             ("7B, ZeRO-2 on 16 devices", (7e9, 2, 16)), ("7B, ZeRO-1 on 64 devices", (7e9, 1, 64)),
             ("1T, ZeRO-3 on 1024 devices", (1e12, 3, 1024)), ("7B, no ZeRO, 8 devices", (7e9, 0, 8)),
             ("GPT-3 on one device", (GPT3_N, 0, 1)))

    def solve(self, num_parameters: float, zero_stage: int, num_devices: int) -> float:
        return training_memory(num_parameters, "mixed", zero_stage, num_devices).total

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n = source.randint(2, 500) * 1e9, source.randint(17, 4000)
        return f"{N / 1e9:g}B, ZeRO-2 on {n} devices", (N, 2, n)


class TrainingDays(NumberExercise):
    tolerance = SIX_DIGITS
    number = "1.2"
    budget = "28.5 days for GPT-3 on 1024 A100 at 40 %"
    unit = "day"
    cases = (("the example, 1B on 8 devices", (1e9, 20e9, 8, 312, 0.5)),
             ("GPT-3 on 1024 A100 at 40 %", (GPT3_N, GPT3_D, 1024, A100_TFLOPS, 0.4)),
             ("GPT-3 on one A100 at its peak", (GPT3_N, GPT3_D, 1, A100_TFLOPS, 1.0)),
             ("Llama 3 405B on 16,384 H100 at 40 %", (405.85e9, 15.6e12, 16_384, 989.5, 0.4)))

    def solve(self, num_parameters: float, num_tokens: float, num_devices: int, peak_tflops: float,
              utilisation: float) -> float:
        return training_days(training_flops(num_parameters, num_tokens), num_devices, peak_tflops * 1e12, utilisation)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n, u = source.randint(2, 500) * 1e9, source.randint(17, 4000), source.randint(20, 60) / 100
        return f"{N / 1e9:g}B on 2T tokens, {n} devices at {u:.0%}", (N, 2e12, n, 989.5, u)


class MFU(NumberExercise):
    tolerance = SIX_DIGITS
    number = "1.3"
    budget = "a share from 0 to 1; recomputed FLOPs do not count"
    cases = (("the example, 1B on 8 devices", (1e9, 1e6, 5, 8, 300e12, False)),
             ("175B, 3.1M tokens a step with recomputation, 1024 A100",
              (GPT3_N, 1536 * 2048, 30.62, 1024, 312e12, True)),
             ("the same without recomputation", (GPT3_N, 1536 * 2048, 24.0, 1024, 312e12, False)),
             ("8B on 8 H100", (8.03e9, 2**20, 13.0, 8, 989.5e12, False)))

    def solve(self, num_parameters: float, tokens_per_step: int, step_s: float, num_devices: int,
              peak_flops_per_s: float, recompute: bool) -> float:
        return utilisation(training_flops(num_parameters, tokens_per_step), step_s, num_devices, peak_flops_per_s)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n, share = source.randint(2, 500) * 1e9, source.randint(17, 4000), source.uniform(0.2, 0.6)
        step_s = round(6 * N * 2**21 / (n * 989.5e12 * share), 3)  # of a share that somebody could measure
        label = f"{N / 1e9:g}B with recomputation, {n} devices, {step_s:g} s a step"
        return label, (N, 2**21, step_s, n, 989.5e12, True)


class ParallelShare(NumberExercise):
    tolerance = SIX_DIGITS
    number = "1.4"
    budget = "exactly the P that Amdahl's law has for these two times"
    cases = (
        ("the example, 10 s alone, 6 s on 2", (2, 10.0, 6.0)),
        ("10 s alone, 3 s on 8 devices", (8, 10.0, 3.0)),
        ("4 s alone, 2.5 s on 2", (2, 4.0, 2.5)),
        ("7 s alone, 2.1 s on 5", (5, 7.0, 2.1)),
        ("1 s alone, 1/64 s on 64", (64, 1.0, 1 / 64)),
        ("6 s alone, 6 s on 4", (4, 6.0, 6.0)),
        ("6 s alone, 7 s on 4", (4, 6.0, 7.0)))

    def solve(self, num_devices: int, single_s: float, parallel_s: float) -> float:
        return fit_amdahl([num_devices], [single_s / parallel_s])

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        n, P = source.randint(3, 60), source.uniform(0.3, 0.95)
        return f"10 s alone, {10 * (1 - P + P / n):.6f} s on {n} devices", (n, 10.0, 10 * (1 - P + P / n))


class WhatToOrder(NumberExercise):
    number = "1.6"
    unit = "node"
    budget = "the fewest whole nodes that are in time and hold the state"
    DEVICES, STATE_BYTES, FOR_STATE = 8, 16, 0.5  # in a node; for each parameter; the share of the memory
    cases = (("the example, 8B on 2T tokens in 14 days at 45 %", (8.03e9, 2e12, 14, 0.45)),
             ("Llama 3 70B on 15T tokens in 30 days at 40 %", (70.6e9, 15e12, 30, 0.4)),
             ("1T parameters, 10B tokens to see whether it runs, 60 days at 40 %", (1e12, 1e10, 60, 0.4)),
             ("3B on 0.3T tokens in 30 days at 40 %: a node is enough", (3e9, 3e11, 30, 0.4)),
             # Of the next ones a node's first device is just needed, or just not: no rounding and no other day passes.
             ("21B on 0.1T tokens in 60 days at 40 %", (21e9, 1e11, 60, 0.4)),
             ("1.8T on 13T tokens in 100 days at 40 %", (1.8e12, 13e12, 100, 0.4)),
             ("671B on 14.8T tokens in 60 days at 40 %", (671e9, 14.8e12, 60, 0.4)))

    def solve(self, num_parameters: float, num_tokens: float, days: float, utilisation: float) -> int:
        return math.ceil(max(self.nodes(num_parameters, num_tokens, days, utilisation)))

    def nodes(self, num_parameters: float, num_tokens: float, days: float, utilisation: float) -> tuple[float, float]:
        """How many nodes it takes to be in time, and how many to hold the state."""
        device = accelerator("H100")
        in_time = 6 * num_parameters * num_tokens / (days * 86_400 * device.peak_flops_per_s() * utilisation)
        in_memory = self.STATE_BYTES * num_parameters / (self.FOR_STATE * device.memory_bytes)
        return in_time / self.DEVICES, in_memory / self.DEVICES

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        """Time decides half of them and memory the others, and no quotient is near a whole number."""
        while True:
            N, days, u = source.randint(20, 600) * 1e9, source.randint(10, 90), source.randint(30, 50) / 100
            _, in_memory = self.nodes(N, 1.0, days, u)
            a_token, _ = self.nodes(N, 1.0, days, u)
            D = float(f"{source.choice((0.2, 0.5, 2, 5)) * in_memory / a_token:.2g}")
            if 0.05 < max(self.nodes(N, D, days, u)) % 1 < 0.95:
                return f"{N / 1e9:g}B on {D / 1e9:,.4g}B tokens in {days} days at {u:.0%}", (N, D, days, u)


SHORT_ROW = ("rows of different lengths cannot be stacked: the last one has no token behind it, so it is no whole row, "
             "and (len(tokens) - 1) // s are")


class ShardedRows(TensorExercise):
    number = "1.5"
    budget = "nothing is sent, and each row is on one rank"
    operations = frozenset()
    errors = (("equal size", SHORT_ROW),)
    sizes = (3, 36, 4), (2, 41, 4), (3, 100, 7), (1, 23, 5), (4, 4 * 6 + 1, 6)

    def example_trial(self) -> Trial:
        return Trial([[torch.arange(10), 2] for _ in range(2)], "the example, 2 ranks, 10 tokens, rows of 2")

    def draw_trial(self, generator: torch.Generator, n: int, length: int, s: int) -> Trial:
        text = torch.randint(0, 256, (length,), generator=generator)
        return Trial([[text.clone(), s] for _ in range(n)], f"{n} ranks, {length} tokens, rows of {s}")

    def solve(self, inputs: list[list[Any]]) -> list[Tensor]:
        text, s = inputs[0]
        return [rows_of(text, s, range(r, (len(text) - 1) // s, len(inputs))) for r in range(len(inputs))]

    def bound(self, trial: Trial) -> int:
        return 0

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        (text, s), n = trial.inputs[0], trial.world_size
        each = [len(rows) for rows in self.select_parts(answers)]
        read = highest("has", each, -(-((len(text) - 1) // s) // n), "row")
        return [read, *super().usage(trial, answers, traffic)]


def rows_of(text: Tensor, s: int, rows: range) -> Tensor:
    """The rows (len(rows), s + 1)."""
    return torch.stack([text[i * s: i * s + s + 1] for i in rows]) if len(rows) else text.new_empty(0, s + 1)
