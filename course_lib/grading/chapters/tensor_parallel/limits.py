"""Exercise 5.8: how wide a model has to be so that a cut over t devices pays.

    t  devices    h  hidden size    B T  tokens    F  FLOP/s that a device does    W  bytes/s it sends
    w  bytes of a number on its way
    computing of a layer  6 * 12 h^2 B T / (t F)      sending  4 * 2 (t-1)/t w B T h / W

Sources: Shoeybi et al. 2019; Austin et al. 2025, How to Scale Your Model, chapter Training.
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise

H100, NVLINK, NDR = 600e12, 450e9, 50e9  # 0.6 of its peak in bf16; facts has all three


class SmallestHiddenSize(NumberExercise):
    number = "5.8"
    function = "my_smallest_hidden_size"
    points = 3
    tolerance = (0.01, 0.0)
    budget = "within 1 %"
    hints = (
        "Set two times side by side: what a device computes in a layer, and what it sends. How does each grow with h? "
        "The tokens are in both.",
        "A device computes 6 * 12 h^2 B T / t FLOPs in a layer, forward and backward, and takes part in four "
        "all-reduces of B T h numbers, each of which it sends 2(t-1)/t times. Sending over computing is share; B T, "
        "one h and the t of both cancel.",
        "# share = sending / computing, and sending = 4 * 2 * (t - 1) / t * w * B T h / W\n"
        "#                              computing = 72 * h**2 * B T / (t * F)\n"
        "# solve for h\n"
        "return ... * (t - 1) * w * F / (... * share * W)",
    )
    cases = (("16 H100 over NVLink 4, fp8 on the wire, 30 %", (16, H100, NVLINK, 0.3, 1)),
             ("8 H100 over NVLink 4, a quarter", (8, H100, NVLINK, 0.25, 2)),
             ("8 H100, each in another node, a quarter", (8, H100, NDR, 0.25, 2)),
             ("2 H100 over InfiniBand NDR, as long as computing", (2, H100, NDR, 1.0, 2)))

    def expected(self, t: int, flops_per_s: float, bytes_per_s: float, share: float, number_bytes: int) -> float:
        return 8 * (t - 1) * number_bytes * flops_per_s / (72 * share * bytes_per_s)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        t, F, W, share, w = (source.randint(*bounds) for bounds in ((2, 16), (100, 900), (20, 900), (5, 90), (1, 4)))
        return (f"{t} devices, {F} TFLOP/s, {W} GB/s, {share} %, {w} bytes a number",
                (t, F * 1e12, W * 1e9, share / 100, w))

    def mistakes(self, t: int, flops_per_s: float, bytes_per_s: float, share: float, number_bytes: int
                 ) -> Iterable[tuple[str, float]]:
        right = self.expected(t, flops_per_s, bytes_per_s, share, number_bytes)
        yield f"{number_bytes} bytes a number are left out", right / number_bytes
        yield ("four times too small: a layer has four all-reduces, behind attention and behind the MLP, forward and "
               "backward", right / 4)
        yield ("half of it: either two of the four all-reduces are missing, or a ring's second half: each of the "
               "numbers is sent 2(t-1)/t times", right / 2)
        yield ("a token takes 6 FLOPs for each of 12 h^2 numbers: backward takes twice what forward does, and a block "
               "has 4 h^2 numbers in attention and 8 h^2 in the MLP", right * 1.5)
        yield "computing takes 6 FLOPs a token for each number: 2 forward and 4 backward", right * 3
        yield ("computing is not divided by t: each device has a t-th of every matrix",
               right / t)
        yield "a ring sends 2(t-1)/t of the message, not twice of it", right * t / (t - 1)
        if share != 1:
            yield "share is left out: sending may take only this part of the time of computing", right * share
            yield "share stands on the wrong side: the less sending may take, the wider the model", right * share**2
            yield ("share is taken of computing and sending together: it is sending over computing",
                   right * (1 - share))
        yield "bytes were taken for bits: that is a factor of 8", 8 * right
        yield "bits were taken for bytes: that is a factor of 8", right / 8
