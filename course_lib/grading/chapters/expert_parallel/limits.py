"""Exercise 8.8: how wide an expert has to be so that its devices compute for as long as they send.

    k  experts of a token, s shared ones    m  nodes that a token goes to, of G    D  hidden size    F  of an expert
    C  FLOP/s that a device does    W  bytes/s it sends between nodes    w  bytes of a number on its way, out and home
    computing of N tokens  N (k + s) 6 D F / C        sending  N m (G-1)/G D (w_out + w_home) / W        forward

Sources: DeepSeek-AI 2024, DeepSeek-V3, sections 2.1.2 (at most 4 nodes), 3.2.1 (computing to sending about 1 : 1) and
3.3.2 (fp8 out, bf16 home); Jiang et al. 2024, Mixtral of Experts.
"""

import math
import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise

H100, NVLINK, NDR = 600e12, 450e9, 50e9  # 0.6 of its peak in bf16; facts has all three


class SmallestExpert(NumberExercise):
    number = "8.8"
    function = "my_smallest_expert"
    points = 3
    tolerance = (0.01, 0.0)
    budget = "within 1 %"
    hints = (
        "Write both times for one token of one device, which gets as many tokens of others as it gives away. What do "
        "both have, and what has only the computing?",
        "An expert is three matrices, 6 D F FLOPs for a token, and k + shared of them work on it. A token crosses to m "
        "nodes, of which its own is one with probability m/G: m (G-1)/G times D numbers go out, and as many come home. "
        "D cancels.",
        "# computing = (k + shared) * 6 * D * F / flops_per_s\n"
        "# sending = m * (G - 1) / G * D * (out_bytes + home_bytes) / bytes_per_s\n"
        "# solve computing = sending for F\n"
        "return ... * flops_per_s / (6 * ... * bytes_per_s)",
    )
    cases = (("DeepSeek-V3 over 8 nodes of H100, fp8 out, bf16 home", (8, 1, 4, 8, 1, 2, H100, NDR)),
             ("the same, each row sent by itself", (8, 1, 8, 8, 1, 2, H100, NDR)),
             ("Mixtral over 8 nodes, bf16", (2, 0, 2, 8, 2, 2, H100, NDR)),
             ("DeepSeek-V3 over the 8 GPUs of one node", (8, 1, 8, 8, 1, 2, H100, NVLINK)))

    def expected(self, k: int, shared: int, m: int, G: int, out_bytes: int, home_bytes: int, flops_per_s: float,
                 bytes_per_s: float) -> float:
        return m * (G - 1) / G * (out_bytes + home_bytes) * flops_per_s / (6 * (k + shared) * bytes_per_s)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        m, shared, G, F, W = (source.randint(*bounds) for bounds in ((2, 4), (1, 3), (5, 16), (100, 900), (20, 400)))
        k, out = m + source.randint(1, 4), source.choice((1, 2))
        return (f"k = {k}, {shared} shared, m = {m} of {G}, {out} and 4 bytes, {F} TFLOP/s, {W} GB/s",
                (k, shared, m, G, out, 4, F * 1e12, W * 1e9))

    def mistakes(self, *case: Any) -> Iterable[tuple[str, float]]:
        k, shared, m, G, out_bytes, home_bytes, _, _ = case
        likely = [
            (m != k, "a row for each expert is sent, where a token goes once to each of m nodes and is handed on",
             k / m),
            (shared, "shared experts are left out, which compute too while tokens travel", (k + shared) / k),
            (True, "no token stays at home, where its own node is one of its m with probability m/G, so that (G-1)/G "
             "of them are crossed to", G / (G - 1)),
            (True, "both ways have the bytes of the way out", 2 * out_bytes / (out_bytes + home_bytes)),
            (True, "both ways have the bytes of the way home", 2 * home_bytes / (out_bytes + home_bytes)),
            (True, "only the way out is counted, and results come home too", out_bytes / (out_bytes + home_bytes)),
            (True, "only the way home is counted, and tokens go out first", home_bytes / (out_bytes + home_bytes)),
            (True, "an expert has two matrices, where here it has three: gate, up and down, of 2 D F FLOPs each",
             3 / 2),
            (True, "a product takes one FLOP for each number of the matrix, where it takes 2", 2),
            (True, "computing is forward and backward, and sending forward only", 1 / 3),
            (True, "one expert computes, where k + shared of them work on each token", k + shared),
            (True, "bits were taken for bytes, a factor of 8", 1 / 8),
            (True, "bytes were taken for bits, a factor of 8", 8),
        ]
        # Two mistakes may give the same number: the reader hears of both.
        for factor in dict.fromkeys(factor for real, _, factor in likely if real and factor != 1):
            yield ". Or ".join(cause for real, cause, other in likely if real and math.isclose(other, factor)
                               ), factor * self.expected(*case)
