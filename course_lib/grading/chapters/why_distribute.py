"""Chapter 1: bytes, days, utilisation and the parallel share as numbers; a sharded reader on ranks.

The chapter's own functions are imported where an answer is judged: this module is also loaded beside the student's
code, where there is no course_lib.why_distribute to borrow from.
"""

import random
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.facts import accelerator, model
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.numbers import NumberExercise
from course_lib.grading.spent import Spent, most
from course_lib.grading.tensors import TensorExercise

GPT3_N, GPT3_D = model("GPT-3").parameters.value, model("GPT-3").tokens.value
A100_TFLOPS = accelerator("A100").peak_flops_per_s() / 1e12


class TrainingBytes(NumberExercise):
    number = "1.1"
    function = "my_training_bytes"
    points = 2
    budget = "16 bytes a parameter on one device; the ZeRO paper's table on more"
    unit = "exact bytes"
    hints = (
        "Three groups: weights (2 bytes), gradients (2), and what the optimiser needs (4 + 4 + 4). Each stage cuts one "
        "group more than the stage before it.",
        "N * (12 / (n if zero_stage >= 1 else 1) + 2 / (n if zero_stage >= 2 else 1) + 2 / (...)).",
    )
    cases = (("7B, ZeRO-2 on 16 devices", (7e9, 2, 16)), ("7B, ZeRO-1 on 64 devices", (7e9, 1, 64)),
             ("1T, ZeRO-3 on 1024 devices", (1e12, 3, 1024)), ("7B, no ZeRO, 8 devices", (7e9, 0, 8)),
             ("GPT-3 on one device", (GPT3_N, 0, 1)))

    def expected(self, num_parameters: float, zero_stage: int, num_devices: int) -> float:
        from course_lib.why_distribute import training_memory

        return training_memory(num_parameters, "mixed", zero_stage, num_devices).total

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n = source.randint(2, 500) * 1e9, source.randint(17, 4000)
        return f"{N / 1e9:g}B, ZeRO-2 on {n} devices", (N, 2, n)

    def mistakes(self, num_parameters: float, zero_stage: int, num_devices: int) -> Iterable[tuple[str, float]]:
        N, n, cut = num_parameters, num_devices, lambda stage: num_devices if zero_stage >= stage else 1
        only = [n if zero_stage == stage else 1 for stage in (1, 2, 3)]
        yield ("everything is divided by the devices at every stage: stage 1 cuts the optimiser's state alone",
               16 * N / n)
        yield ("each stage cuts its own group and nothing else: stages add up, stage 2 cuts what stage 1 cuts too",
               N * (12 / only[0] + 2 / only[1] + 2 / only[2]))
        yield ("the optimiser's 8 bytes lack the master weights, 4 more in 32 bits",
               N * (8 / cut(1) + 2 / cut(2) + 2 / cut(3)))
        yield ("the gradients are missing: 2 bytes for each parameter", N * (12 / cut(1) + 2 / cut(3)))
        yield "the stages come in another order: first the optimiser's state, then gradients, then parameters", (
            N * (2 / cut(1) + 2 / cut(2) + 12 / cut(3)))
        yield ("these are the weights alone: to train, gradients and the optimiser's state lie beside them",
               2 * N / cut(3))


class TrainingDays(NumberExercise):
    number = "1.2"
    function = "my_training_days"
    points = 2
    budget = "28.5 days for GPT-3 on 1024 A100 at 40 %"
    unit = "day"
    hints = (
        "FLOPs of the whole run over FLOPs a second of the whole cluster. How many FLOPs for each parameter and token?",
        "6 N D / (num_devices * peak_tflops * 1e12 * utilisation) are seconds; a day has 86,400.",
    )
    cases = (("GPT-3 on 1024 A100 at 40 %", (GPT3_N, GPT3_D, 1024, A100_TFLOPS, 0.4)),
             ("GPT-3 on one A100 at its peak", (GPT3_N, GPT3_D, 1, A100_TFLOPS, 1.0)),
             ("Llama 3 405B on 16,384 H100 at 40 %", (405.85e9, 15.6e12, 16_384, 989.5, 0.4)))

    def expected(self, num_parameters: float, num_tokens: float, num_devices: int, peak_tflops: float,
                 utilisation: float) -> float:
        from course_lib.why_distribute import training_days, training_flops

        return training_days(training_flops(num_parameters, num_tokens), num_devices, peak_tflops * 1e12, utilisation)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n, u = source.randint(2, 500) * 1e9, source.randint(17, 4000), source.randint(20, 60) / 100
        return f"{N / 1e9:g}B on 2T tokens, {n} devices at {u:.0%}", (N, 2e12, n, 989.5, u)

    def mistakes(self, num_parameters: float, num_tokens: float, num_devices: int, peak_tflops: float,
                 utilisation: float) -> Iterable[tuple[str, float]]:
        right = self.expected(num_parameters, num_tokens, num_devices, peak_tflops, utilisation)
        yield "only the forward pass is counted, 2ND: the backward pass does twice as much again", right / 3
        yield "the backward pass counts twice the forward pass, not once: 6ND and not 4ND", right * 4 / 6
        yield "8ND counts a forward pass that is done twice: only with recomputation", right * 8 / 6
        yield ("a thousand times too short: 1 TFLOP/s is 1e12 FLOP/s. This is the error of the million seconds",
               right / 1e3)
        yield "peak_tflops was taken for FLOP/s: a TFLOP is 1e12", right * 1e12
        yield "the time was multiplied by the utilisation: a device in half use takes twice as long", (
            right * utilisation**2)
        yield "the utilisation is left out", right * utilisation
        yield "these are seconds: a day has 86,400", right * 86_400
        yield "these are hours: a day has 24", right * 24
        yield "the devices are left out: the work is shared by all of them", right * num_devices


class MFU(NumberExercise):
    number = "1.3"
    function = "my_mfu"
    points = 3
    budget = "a share from 0 to 1; recomputed FLOPs do not count"
    hints = (
        "MFU asks what the MODEL needs. Whether the hardware ran the forward pass twice changes its numerator not at "
        "all.",
        "6 * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s), recompute or not.",
    )
    cases = (("175B, 3.1M tokens a step with recomputation, 1024 A100",
              (GPT3_N, 1536 * 2048, 30.62, 1024, 312e12, True)),
             ("the same without recomputation", (GPT3_N, 1536 * 2048, 24.0, 1024, 312e12, False)),
             ("8B on 8 H100", (8.03e9, 2**20, 13.0, 8, 989.5e12, False)))

    def expected(self, num_parameters: float, tokens_per_step: int, step_s: float, num_devices: int,
                 peak_flops_per_s: float, recompute: bool) -> float:
        from course_lib.why_distribute import training_flops, utilisation

        return utilisation(training_flops(num_parameters, tokens_per_step), step_s, num_devices, peak_flops_per_s)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, n, step_s = source.randint(2, 500) * 1e9, source.randint(17, 4000), source.randint(300, 900) / 10
        label = f"{N / 1e9:g}B with recomputation, {n} devices, {step_s:g} s a step"
        return label, (N, 2**21, step_s, n, 989.5e12, True)

    def mistakes(self, num_parameters: float, tokens_per_step: int, step_s: float, num_devices: int,
                 peak_flops_per_s: float, recompute: bool) -> Iterable[tuple[str, float]]:
        right = self.expected(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute)
        if recompute:
            yield "that is HFU: 8 FLOPs count the forward pass that is done twice. The model needs 6", right * 8 / 6
            yield "recomputed FLOPs are taken off: they were never among the 6 that the model needs", right * 6 / 8
            yield "recomputed FLOPs are taken off: they were never among the 6 that the model needs", right * 4 / 6
        yield "only the forward pass is counted, 2 FLOPs: training needs 6", right / 3
        yield "these are per cent: a share from 0 to 1 is asked", right * 100
        yield "the number of devices is left out: the peak is that of all of them", right * num_devices
        yield "numerator and denominator are swapped: a share is at most 1", 1 / right


class ParallelShare(NumberExercise):
    number = "1.4"
    function = "my_parallel_share"
    points = 3
    budget = "exactly the P that Amdahl's law has for these two times"
    hints = (
        "Solve S = 1 / ((1 - P) + P/n) for P. Begin with 1/S = 1 - P (1 - 1/n).",
        "P = (1 - parallel_s / single_s) / (1 - 1 / num_devices).",
    )
    cases = (("10 s alone, 3 s on 8 devices", (8, 10.0, 3.0)), ("4 s alone, 2.5 s on 2", (2, 4.0, 2.5)),
             ("1 s alone, 1/64 s on 64", (64, 1.0, 1 / 64)), ("6 s alone, 6 s on 4", (4, 6.0, 6.0)))

    def expected(self, num_devices: int, single_s: float, parallel_s: float) -> float:
        from course_lib.why_distribute import fit_amdahl

        return fit_amdahl([num_devices], [single_s / parallel_s])

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        n, P = source.randint(3, 60), source.randint(30, 95) / 100
        return f"10 s alone, {10 * (1 - P + P / n):.3f} s on {n} devices", (n, 10.0, 10 * (1 - P + P / n))

    def mistakes(self, num_devices: int, single_s: float, parallel_s: float) -> Iterable[tuple[str, float]]:
        n, S = num_devices, single_s / parallel_s
        P = self.expected(num_devices, single_s, parallel_s)
        yield "that is the serial share, 1 - P: the parallel one is asked", 1 - P
        yield "that is the efficiency, S/n: it says how much each device gave, not which share could be split", S / n
        yield "1 - 1/S is P only for infinitely many devices: P/n of the time is parallel work, too", 1 - 1 / S
        yield "that is the speed-up S: what share P explains it?", S
        yield "S is turned around: the speed-up is the time alone over the time together", (1 - S) / (1 - 1 / n)
        yield "that is Gustafson's share, S = (1 - P) + P n: here the work is fixed, not the time", (S - 1) / (n - 1)


class ShardedRows(TensorExercise):
    number = "1.5"
    function = "my_rows"
    points = 3
    budget = "nothing is sent, each row read once"
    operations = frozenset()
    hints = (
        "How many whole rows are there? A row of s needs s + 1 tokens, the last one being the answer to the one "
        "before. "
        "Which of them are yours?",
        "[tokens[i * s : i * s + s + 1] for i in range(dist.get_rank(), (len(tokens) - 1) // s, "
        "dist.get_world_size())]",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, length, s in ((2, 41, 4), (3, 100, 7), (1, 23, 5), (4, 4 * 6 + 1, 6)):
            text = torch.randint(0, 256, (length,), generator=generator)
            made.append(Trial([[text.clone(), s] for _ in range(n)], f"{n} ranks, {length} tokens, rows of {s}"))
        return made

    def expected(self, inputs: list[list[Any]]) -> list[Tensor]:
        text, s = inputs[0]
        return [rows_of(text, s, range(r, (len(text) - 1) // s, len(inputs))) for r in range(len(inputs))]

    def mistakes(self, inputs: list[list[Any]]) -> Iterable[tuple[str, list[Tensor]]]:
        (text, s), n = inputs[0], len(inputs)
        num_rows = (len(text) - 1) // s
        right = self.expected(inputs)
        yield "every rank reads every row: n devices then learn the same from each", (
            [rows_of(text, s, range(num_rows))] * n)
        yield ("the rows lack the token that follows: without it the last one has no answer",
               [rows[:, :s] for rows in right])
        each = -(-num_rows // n)
        yield ("each rank reads a block of its own: no row is read twice, but rank r should begin at row r and step "
               "by n, "
               "so that all ranks together read the text in order"), [
            rows_of(text, s, range(r * each, min((r + 1) * each, num_rows))) for r in range(n)]
        whole = num_rows // n
        yield ("each rank reads a block of its own: no row is read twice, but rank r should begin at row r and step "
               "by n, "
               "so that all ranks together read the text in order"), [
            rows_of(text, s, range(r * whole, (r + 1) * whole)) for r in range(n)]
        yield "rank r starts at row r but reads all that follow: step by the number of ranks", [
            rows_of(text, s, range(r, num_rows)) for r in range(n)]
        yield "the last row of some rank is missing: (len(tokens) - 1) // s rows are whole", [
            rows_of(text, s, range(r, num_rows - 1, n)) for r in range(n)]
        last = (len(text) - (s + 1)) // (s + 1) + 1
        yield "rows overlap in one token: row i starts at i s and not at i (s + 1)", [
            torch.stack([text[i * (s + 1): (i + 1) * (s + 1)] for i in range(r, last, n)]) if r < last
            else text.new_empty(0, s + 1) for r in range(n)]

    def bound(self, trial: Trial) -> int:
        return 0

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        (text, s), n = trial.inputs[0], trial.world_size
        each = [len(rows) for rows in self.given(answers)]
        read = Spent("read", max(each), -(-((len(text) - 1) // s) // n), "row", rank=most(each))
        return [read, *super().spent(trial, answers, traffic)]


def rows_of(text: Tensor, s: int, rows: range) -> Tensor:
    """The rows (len(rows), s + 1)."""
    return torch.stack([text[i * s: i * s + s + 1] for i in rows]) if len(rows) else text.new_empty(0, s + 1)


EXERCISES = (TrainingBytes, TrainingDays, MFU, ParallelShare, ShardedRows)
