"""Exercises 3.8 and 3.9: when data parallelism is bound by its wires, as a formula and as a decision.

    N  parameters    n  ranks    F  FLOP/s that a device really gets    b  its tokens a step    g  bytes of a gradient
    backward: 4 N b / F      the all-reduces of B buckets: 2(n-1) alpha B + 2(n-1)/n g N beta

Source: Austin et al. 2025, How to Scale Your Model, chapter Training; Li et al. 2020 for buckets.
"""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from course_lib.facts import NCCL_STEP_LATENCY, accelerator, interconnect
from course_lib.grading.exercise import Trial
from course_lib.grading.numbers import NumberExercise

GRADIENT_BYTES = 4  # float32
UTILISATION = 0.4  # of the peak
ALPHA_S = {kind: 1e-6 * latency.value for kind, latency in NCCL_STEP_LATENCY.items()}
PLACES = (("V100", "InfiniBand EDR"), ("A100", "InfiniBand HDR"), ("A100", "NVLink 3 (A100)"), ("A100", "Ethernet 10G"),
          ("A100", "Ethernet 100G"), ("H100", "InfiniBand NDR"), ("H100", "NVLink 4 (H100)"))


def case(device: str, link: str, N: float, B: int, n: int, s: int) -> tuple[str, tuple[Any, ...]]:
    """What is asked about, and my_smallest_batch's arguments."""
    wire = interconnect(link)
    dtype = "fp16" if device == "V100" else "bf16"
    arguments = (N, B, n, UTILISATION * accelerator(device).peak_flops_per_s(dtype), ALPHA_S[wire.kind],
                 1 / wire.one_way_bytes_per_s, s)
    size = f"{N / 1e9:.3g}B" if N >= 1e9 else f"{N / 1e6:.3g}M"
    return f"{size} in {B} buckets on {n} {device}, {link}", arguments


class SmallestBatch(NumberExercise):
    number = "3.8"
    function = "my_smallest_batch"
    points = 3
    unit = "sequence"
    tolerance = (0.0, 0.0)
    budget = "the fewest whole sequences with which backward takes at least as long as all all-reduces together"
    hints = (
        "Two times have to be equal: backward's, which grows with the tokens, and that of the messages, which does "
        "not. How many FLOPs are a backward pass? How often is alpha paid?",
        "Backward: 4 N b / F for b tokens. Messages: each bucket pays 2(n-1) alpha, and all bytes together, 4 N, "
        "travel 2(n-1)/n times over the link. Solve for b; then whole sequences, rounded up.",
        "communication_s = num_buckets * 2 * (n - 1) * alpha_s + (bytes that a rank sends) * beta_s_per_byte; tokens = "
        "communication_s * flops_per_s / (FLOPs of backward for one token); math.ceil(tokens / sequence_length).",
    )
    cases = tuple(case(device, link, N, B, n, s) for (device, link), (N, B, n, s) in zip(PLACES, (
        (3.8e6, 4, 8, 64), (1.3e9, 50, 64, 2048), (124e6, 20, 8, 1024), (124e6, 20, 16, 1024),
        (1.6e9, 240, 32, 1024), (8.03e9, 200, 256, 8192), (350e6, 50, 8, 2048))))

    def expected(self, N: float, B: int, n: int, flops_per_s: float, alpha_s: float, beta_s_per_byte: float,
                 s: int) -> float:
        return sequences(self.seconds(N, B, n, alpha_s, beta_s_per_byte), N, flops_per_s, s)

    @staticmethod
    def seconds(N: float, B: float, n: int, alpha_s: float, beta_s_per_byte: float) -> float:
        """All all-reduces of one step."""
        return B * 2 * (n - 1) * alpha_s + 2 * (n - 1) / n * GRADIENT_BYTES * N * beta_s_per_byte

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        device, link = source.choice(PLACES)
        return case(device, link, source.randint(2, 90) * 1e8, source.randint(10, 400), source.randint(3, 500), 1024)

    def mistakes(self, N: float, B: int, n: int, flops_per_s: float, alpha_s: float, beta_s_per_byte: float,
                 s: int) -> Iterable[tuple[str, float]]:
        F, right = flops_per_s, self.seconds(N, B, n, alpha_s, beta_s_per_byte)
        exact = right * F / (4 * N)
        yield "that is a whole number of tokens: whole sequences are asked", float(math.ceil(exact))
        yield "these are tokens: whole sequences are asked", exact
        yield "a part of a sequence is no batch: round up", exact / s
        yield "rounded down, the last sequence is missing and a little stays exposed: round up", float(exact // s)
        yield ("forward counts here, 6 N b: the messages begin in backward, and only its 4 N b FLOPs can hide them",
               sequences(right * 4 / 6, N, F, s))
        yield ("2 N b is a forward pass: backward takes twice as long", sequences(right * 2, N, F, s))
        yield ("alpha is left out: each bucket pays 2(n-1) of them",
               sequences(self.seconds(N, 0, n, alpha_s, beta_s_per_byte), N, F, s))
        yield ("alpha is paid for one message: each bucket pays 2(n-1) of them",
               sequences(self.seconds(N, 1, n, alpha_s, beta_s_per_byte), N, F, s))
        yield ("alpha is paid once a bucket: a ring takes 2(n-1) steps, and each pays it",
               sequences(B * alpha_s + 2 * (n - 1) / n * GRADIENT_BYTES * N * beta_s_per_byte, N, F, s))
        yield ("the bytes travel once: a ring sends them nearly twice, 2(n-1)/n times",
               sequences(B * 2 * (n - 1) * alpha_s + GRADIENT_BYTES * N * beta_s_per_byte, N, F, s))
        yield ("every bucket is as large as all gradients: together they have 4 N bytes",
               sequences(B * self.seconds(N, 1, n, alpha_s, beta_s_per_byte), N, F, s))
        yield ("these gradients have 2 bytes a number: float32 has 4",
               sequences(self.seconds(N, B, n, alpha_s, beta_s_per_byte / 2), N, F, s))


def sequences(communication_s: float, N: float, flops_per_s: float, s: int) -> float:
    """The fewest of s tokens whose backward takes so long."""
    return float(math.ceil(communication_s * flops_per_s / (4 * N) / s))


class MostDevices(NumberExercise):
    number = "3.9"
    function = "my_most_devices"
    points = 3
    unit = "device"
    tolerance = (0.05, 0.0)
    budget = "a number of devices, to 5 %"
    hints = (
        "The batch is fixed, so n devices have B/n tokens each. Of the two times, which one shrinks when n grows, and "
        "which one hardly does? Where they cross is the answer; the model's size cancels.",
        "Backward 4 N (B/n) / F against the all-reduce 2(n-1)/n g N / W. F is what a device really gets; g is float32; "
        "W is what leaves ONE device for other nodes, in bytes. Multiply both sides by n.",
        "4 B / F = 2 (n - 1) g / W, so n = 1 + (something) / (g F). course_lib.facts has accelerator('A100')"
        ".peak_flops_per_s('bf16') and interconnect('InfiniBand HDR').one_way_bytes_per_s.",
    )
    cases = (("3.2M tokens a step, A100s with an HDR card each", ()),)
    BATCH, DEVICE, WIRE, INSIDE = 3.2e6, "A100", "InfiniBand HDR", "NVLink 3 (A100)"

    def trials(self, seed: int) -> list[Trial]:
        return super().trials(seed)[:1]  # one question, one answer

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        return self.cases[0]

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return ()

    def most(self, flops_per_s: float, bytes_per_s: float, gradient_bytes: float = GRADIENT_BYTES) -> float:
        return 1 + 2 * self.BATCH * bytes_per_s / (gradient_bytes * flops_per_s)

    def expected(self) -> float:
        return self.most(*self.rates())

    def rates(self) -> tuple[float, float]:
        """FLOP/s that a device gets, bytes/s that leave it for other nodes."""
        return (UTILISATION * accelerator(self.DEVICE).peak_flops_per_s("bf16"),
                interconnect(self.WIRE).one_way_bytes_per_s)

    def mistakes(self) -> Iterable[tuple[str, float]]:
        F, W = self.rates()
        yield "a device is taken at its peak: it gets 40 % of that", self.most(F / UTILISATION, W)
        yield "the wires are NVLink's: a ring over many nodes is as fast as the card between them", self.most(
            F, interconnect(self.INSIDE).one_way_bytes_per_s)
        yield ("eight times too many: 200 Gbit/s are 25 GB/s, and each of a node's eight devices has one such card",
               self.most(F, 8 * W))
        yield ("twice too many: float32 has 4 bytes a gradient, and a ring sends each of them nearly twice",
               self.most(F, W, 2))
        yield ("all 6 N b FLOPs of a step hide the messages: they begin in backward, whose FLOPs are 4 N b",
               self.most(F * 4 / 6, W))
        yield "a forward pass, 2 N b, hides the messages: it is backward, with 4 N b", self.most(2 * F, W)
        yield "these are the tokens that a device needs: how many such shares has the batch?", (
            self.BATCH / self.most(F, W))
