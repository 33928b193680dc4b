"""Exercises 1.1 to 1.4: bytes, days, utilisation and the parallel share as numbers.

The chapter's own functions are imported where an answer is judged: this module is also loaded beside the student's
code, where there is no course_lib.why_distribute to borrow from.
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.facts import accelerator, model
from course_lib.grading.numbers import NumberExercise

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
        "Write one line for each group: its bytes times N, divided by n from its stage on and by 1 before. 12 bytes "
        "are cut from stage 1 on, 2 from stage 2 on, 2 at stage 3.",
        "optimizer_state = 12 * N / (n if zero_stage >= ... else 1)\n"
        "gradients = 2 * N / (...)\n"
        "weights = ...\n"
        "return the sum of the three",
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
        "Six for each of the N D pairs. The cluster does num_devices times the peak of one a second, of which it uses "
        "`utilisation`. The peak comes in TFLOP/s, and the answer in days.",
        "flops = 6 * ...\n"
        "flops_per_s = num_devices * peak_tflops * ... * utilisation   # how many FLOP are one TFLOP?\n"
        "return flops / flops_per_s / ...   # seconds in a day",
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
        "The FLOPs that the model needs for these tokens, over the FLOPs that all devices could have done in step_s. "
        "`recompute` is there to tempt you.",
        "needed = 6 * ...\n"
        "possible = step_s * ...   # what all devices together could do in that time\n"
        "return needed / possible",
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
        "1/S is parallel_s / single_s. What is P in 1/S = 1 - P (1 - 1/n)? It is one subtraction and one division.",
        "left = 1 - parallel_s / single_s   # the share of the time that was saved\n"
        "most = ...   # what would be saved if all of it were parallel, on num_devices\n"
        "return left / most",
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
