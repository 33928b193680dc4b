"""Exercises 7.6 and 7.8: what a Llama layer keeps for backward, and how long attention takes over ring and Ulysses.

    n  tokens    h  hidden size    f  of the MLP    H, K  heads of q, and of k and v    t  ranks of tensor parallelism
    u, R  ranks of a Ulysses group, and of a ring      d  head size      T  tokens in the row

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"; Liu et al. 2023,
"Ring Attention with Blockwise Transformers"; Jacobs et al. 2023, "DeepSpeed Ulysses"; Llama team 2024.
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise

H100, NVLINK, NDR = 600e12, 450e9, 50e9  # 0.6 of its peak in bf16; facts has all three
LLAMA_8B, LLAMA_70B = (4096, 14336, 32, 8), (8192, 28672, 64, 8)  # h, f, H, K


class LayerBytes(NumberExercise):
    number = "7.6"
    function = "my_layer_bytes"
    points = 3
    unit = "exact bytes"
    budget = "to the byte"
    hints = (
        "Tensor parallelism cuts what lies between a column matrix and a row matrix. What lies outside of the two "
        "branches, and what does sequence parallelism do to it?",
        "Four rows of the table have h numbers a token and lie outside: on every rank whole, or, with sequence "
        "parallelism, a t-th of the tokens on each. All other rows are cut over the t ranks in either case.",
        "outside = 4 * 2 * h\n"
        "inside = 2 * h + 2 * 2 * h * K / H + 4 * H + ...\n"
        "return n * (outside / (...) + inside / t)",
    )
    cases = (("Llama 3 70B, 8,192 tokens, t = 8, without sequence parallelism", (8192, *LLAMA_70B, 8, False)),
             ("the same with sequence parallelism", (8192, *LLAMA_70B, 8, True)),
             ("Llama 3 8B, 4,096 tokens, t = 2, without", (4096, *LLAMA_8B, 2, False)),
             ("Llama 3 8B on one device", (4096, *LLAMA_8B, 1, False)))

    def expected(self, n: int, h: int, f: int, H: int, K: int, t: int, sequence_parallel: bool) -> float:
        inside = 4 * h + 4 * h * K / H + 4 * H + 8 * f
        return n * (8 * h / (t if sequence_parallel else 1) + inside / t)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        K, t = 2 ** source.randint(2, 3), 2 ** source.randint(1, 2)
        H, n = K * source.randint(2, 6), 64 * source.randint(1, 100)
        h, f = 128 * H, 256 * source.randint(10, 60)
        return f"n = {n}, h = {h}, f = {f}, H = {H}, K = {K}, t = {t}, without", (n, h, f, H, K, t, False)

    def mistakes(self, n: int, h: int, f: int, H: int, K: int, t: int, sequence_parallel: bool
                 ) -> Iterable[tuple[str, float]]:
        right = self.expected(n, h, f, H, K, t, sequence_parallel)
        inside, cut = 4 * h + 4 * h * K / H + 4 * H + 8 * f, t if sequence_parallel else 1
        if t > 1:
            if sequence_parallel:
                yield ("what lies outside of the branches is whole on every rank here: with sequence parallelism each "
                       "has a t-th of the tokens", n * (8 * h + inside / t))
                yield ("the inputs of the column matrices are counted whole, as if what is gathered were kept: the "
                       "table's rows say that shards are, and are gathered again",
                       n * (4 * h / t + 4 * h + inside / t))
            else:
                yield ("everything is divided by t: without sequence parallelism what lies outside of the branches, "
                       "norms and their results, is whole on every rank", n * (8 * h + inside) / t)
                yield ("norms' inputs or their results are divided by t: both lie outside of the cut, and without "
                       "sequence parallelism every rank has them whole", n * (4 * h + (4 * h + inside) / t))
            yield ("nothing is divided by t: what lies between a column and a row matrix is cut over the ranks",
                   n * (8 * h + inside))
        yield "these are numbers: each has 2 bytes, and an lse 4", n * (4 * h / cut + (inside - 2 * H) / 2 / t)
        yield ("k and v are taken to be as wide as q: they have K heads of the H", right + n * (4 * h - 4 * h * K / H)
               / t)
        yield "an lse has 2 bytes here: it is kept in 32 bits", right - n * 2 * H / t
        yield "the lse of attention is missing: 4 bytes for each head and token", right - n * 4 * H / t
        for missing in (1, 2):
            yield (f"the MLP has {4 - missing} rows of f here: gate, silu(gate), up and their product are kept",
                   right - missing * n * 2 * f / t)
        yield "k or v is missing: both are kept", right - n * 2 * h * K / H / t
        yield "attention's result, which the output matrix reads, is missing", right - n * 2 * h / t


class AttentionSeconds(NumberExercise):
    number = "7.8"
    function = "my_attention_seconds"
    points = 3
    tolerance = (0.01, 0.0)
    unit = "exact s"
    budget = "within 1 %"
    hints = (
        "Three times: the all-to-alls, one block's computing, one block's sending. Which two of them happen at once? "
        "And how often?",
        "A rank of the ring has T/R tokens, a rank of its Ulysses group H/u of their heads. A block is T/R queries and "
        "T/R keys, of which half are hidden: 4 d FLOPs a pair and head. Of R blocks the last is used while nothing "
        "travels.",
        "pairs = (T / R) ** 2 / 2\n"
        "computing = 4 * d * pairs * H / u / flops_per_s\n"
        "sending = 2 * ... * d * K / u * T / R / slow\n"
        "switching = (u - 1) / u * 2 * ... * d * T / (u * R) / fast\n"
        "return switching + (R - 1) * max(...) + computing",
    )
    cases = (("1M tokens, a ring of 64", (1 << 20, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("1M tokens, Ulysses of 8 in rings of 8", (1 << 20, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, a ring of 64", (1 << 17, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 in rings of 8", (1 << 17, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 alone", (1 << 17, 8, 1, 64, 8, 128, H100, NVLINK, NDR)))

    def parts(self, T: int, u: int, R: int, H: int, K: int, d: int, flops_per_s: float, fast: float, slow: float
              ) -> tuple[float, float, float]:
        """Seconds of the all-to-alls, of computing with one block, of sending one."""
        return ((u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast,
                2 * d * (T / R) ** 2 * H / u / flops_per_s, 2 * 2 * d * K / u * T / R / slow)

    def expected(self, *case: Any) -> float:
        switching, computing, sending = self.parts(*case)
        return switching + (case[2] - 1) * max(computing, sending) + computing

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        u, R, K = 2 ** source.randint(1, 2), 2 ** source.randint(2, 4), 4
        T, H, W = 1024 * R * source.randint(1, 3), K * source.randint(4, 10), source.randint(1, 20)
        return f"{T} tokens, u = {u}, R = {R}, H = {H}, {W} GB/s", (T, u, R, H, K, 128, H100, NVLINK, W * 1e9)

    def mistakes(self, *case: Any) -> Iterable[tuple[str, float]]:
        T, u, R, H, K, d, F, fast, slow = case
        switching, computing, sending = self.parts(*case)

        def took(switching: float = switching, computing: float = computing, sending: float = sending) -> float:
            return switching + (R - 1) * max(computing, sending) + computing

        yield ("computing and sending are added up: the next block travels while this one is used, so a step takes the "
               "longer of the two", switching + R * computing + (R - 1) * sending)
        yield ("sending is left out: where a block takes longer to send than to use, a step waits for it",
               switching + R * computing)
        yield "nothing travels in the last step, so R - 1 steps can wait for a message", (
            switching + R * max(computing, sending))
        yield ("twice the pairs: under a causal mask half of them are hidden, and zigzag shares out the other half "
               "evenly", took(computing=2 * computing))
        yield ("half of the computing: a pair takes 4 d FLOPs, 2 d for its score and 2 d for its value",
               took(computing=computing / 2))
        yield "the keys' heads are taken to be as many as the queries': a block has K heads of k and v", took(
            sending=sending * H / K)
        yield "half of a block: k and v both go around", took(sending=sending / 2)
        if u > 1:
            yield ("the ring sends all K heads: behind the all-to-all each rank has K/u of them",
                   took(sending=sending * u))
            yield ("each rank computes all H heads: behind the all-to-all it has H/u of them",
                   took(computing=computing * u))
            yield ("the all-to-alls are left out: nobody computes while they run", took(switching=0.0))
            yield ("all-to-all sends only the (u-1)/u of a rank's tokens that others want", took(
                switching=switching * u / (u - 1)))
            yield ("q and the result go through an all-to-all as k and v do: 2 H + 2 K heads", took(
                switching=switching * (H + 2 * K) / (2 * H + 2 * K)))
            yield "the all-to-alls stay in the node, on the fast wire", took(switching=switching * fast / slow)
        yield ("only one step is waited for: there are R - 1 messages", switching + max(computing, sending) + (R - 1)
               * computing)
