"""Exercise 6.8: on how many devices everything can be sharded before the messages are slower than the arithmetic.

    N  parameters    B  tokens of a batch    n  devices    F  FLOP/s that a device does    W  bytes/s it sends
    w, g  bytes of a weight and of a gradient while they travel; (n - 1)/n is taken for 1
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise

H100 = 0.4 * 989.5e12, 50e9  # F: 40 % of its peak in bf16; W: InfiniBand NDR. facts and costs.flops have both


class MostDevices(NumberExercise):
    number = "6.8"
    function = "my_most_devices"
    points = 2
    tolerance = (0.01, 0.0)
    unit = "device"
    budget = "within 1 %"
    hints = (
        "The messages of a pass can hide behind the arithmetic of that pass only. How much is computed in forward, how "
        "much in backward, and what is sent in each?",
        "With T = B/n tokens on each device forward takes 2 N T/F seconds and gathers w N bytes; backward takes twice "
        "as long, gathers w N bytes once more and sends g N. In both the parameters cancel. Which pass sets the limit?",
        "forward = 2 * batch_tokens * bytes_per_s / (flops_per_s * ...)\n"
        "backward = ...  # the same for the other pass\n"
        "return min(forward, backward)",
    )
    cases = (("3 million tokens, H100, InfiniBand NDR, bf16 weights, fp32 gradients", (3e6, *H100, 2, 4)),
             ("the same with bf16 gradients", (3e6, *H100, 2, 2)),
             ("the same with fp32 weights and bf16 gradients", (3e6, *H100, 4, 2)),
             ("16 million tokens, H100, NVLink 4, bf16", (16e6, H100[0], 450e9, 2, 2)))

    def expected(self, batch_tokens: float, flops_per_s: float, bytes_per_s: float, weight_bytes: int,
                 gradient_bytes: int) -> float:
        B, F, W = batch_tokens, flops_per_s, bytes_per_s
        return min(2 * B * W / (F * weight_bytes), 4 * B * W / (F * (weight_bytes + gradient_bytes)))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        B, F, W, w, g = (source.randint(*bounds) for bounds in ((1, 20), (100, 900), (20, 400), (1, 4), (1, 4)))
        return (f"{B} million tokens, {F} TFLOP/s, {W} GB/s, {w} bytes a weight, {g} a gradient",
                (B * 1e6, F * 1e12, W * 1e9, w, g))

    def mistakes(self, batch_tokens: float, flops_per_s: float, bytes_per_s: float, weight_bytes: int,
                 gradient_bytes: int) -> Iterable[tuple[str, float]]:
        B, F, W, w, g = batch_tokens, flops_per_s, bytes_per_s, weight_bytes, gradient_bytes
        right = self.expected(B, F, W, w, g)
        forward, backward = 2 * B * W / (F * w), 4 * B * W / (F * (w + g))
        if forward > right:
            yield ("this is the limit of forward: in backward the weights are gathered once more and the gradients "
                   "leave as well, beside twice the arithmetic", forward)
        if backward > right:
            yield "this is the limit of backward: forward has to hide its gathers behind its own arithmetic", backward
        if forward != backward:
            yield ("this is the limit of the step as a whole: what backward has to send cannot travel during forward, "
                   "so each pass has a limit of its own, and the lower one counts", 6 * B * W / (F * (2 * w + g)))
        yield "these are tokens for each device: devices are asked, so divide the batch by them", B / right
        yield "backward computes twice as much as forward, 4 N T", min(forward, 2 * B * W / (F * (w + g)))
        yield "bytes were taken for bits, or bits for bytes: that is a factor of 8", 8 * right
        yield "bits were taken for bytes, or bytes for bits: that is a factor of 8", right / 8
        yield ("all gathers and the reduction are counted beside forward alone: backward has two thirds of the "
               "arithmetic",
               2 * B * W / (F * (2 * w + g)))
