"""Exercises 7.6 and 7.8: what a Llama layer keeps for backward, and how long attention takes over ring and Ulysses.

    n  tokens    h  hidden size    f  of the MLP    H, K  heads of q, and of k and v    t  ranks of tensor parallelism
    u, R  ranks of a Ulysses group, and of a ring      d  head size      T  tokens in the row

Sources: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"; Liu et al. 2023,
"Ring Attention with Blockwise Transformers"; Jacobs et al. 2023, "DeepSpeed Ulysses"; Llama team 2024.

Exercise 7.3, open-ended: who gets which tokens of a row of documents, so that all ranks have as much to do.

    R  ranks      T  tokens in the row, of documents of the given lengths      a token reads its document up to itself
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from course_lib.costs.network import network_of
from course_lib.grading.compare import describe, readable
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.on_rank import plain
from course_lib.grading.spent import Spent, highest

NODES = network_of("H100")  # of eight
H100 = 600e12  # 0.6 of its peak in bf16
NVLINK, NDR = (float(round(NODES.group(n).bytes_per_s("ring"))) for n in (8, 64))  # between nodes a ring has one card
LLAMA_8B, LLAMA_70B = (4096, 14336, 32, 8), (8192, 28672, 64, 8)  # h, f, H, K


class LayerBytes(NumberExercise):
    number = "7.6"
    unit = "exact bytes"
    budget = "to the byte"
    cases = (("the example, 2 tokens", (2, 4, 8, 4, 2, 2, False)),
             ("Llama 3 70B, 8,192 tokens, t = 8, without sequence parallelism", (8192, *LLAMA_70B, 8, False)),
             ("the same with sequence parallelism", (8192, *LLAMA_70B, 8, True)),
             ("Llama 3 8B, 4,096 tokens, t = 2, without", (4096, *LLAMA_8B, 2, False)),
             ("Llama 3 8B, 4,096 tokens, t = 2, with sequence parallelism", (4096, *LLAMA_8B, 2, True)),
             ("Llama 3 8B on one device", (4096, *LLAMA_8B, 1, False)))

    def solve(self, n: int, h: int, f: int, H: int, K: int, t: int, sequence_parallel: bool) -> int:
        inside = 4 * h + 4 * h * K // H + 4 * H + 8 * f
        return n * (8 * h // (t if sequence_parallel else 1) + inside // t)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        K, t = 2 ** source.randint(2, 3), 2 ** source.randint(1, 2)
        H, n = K * source.randint(2, 6), 64 * source.randint(1, 100)
        h, f = 128 * H, 256 * source.randint(10, 60)
        return f"n = {n}, h = {h}, f = {f}, H = {H}, K = {K}, t = {t}, without", (n, h, f, H, K, t, False)


class AttentionSeconds(NumberExercise):
    number = "7.8"
    unit = "exact s"
    budget = "the formula's seconds"
    cases = (("the example, Ulysses of 2 in rings of 4", (24, 2, 4, 6, 2, 1, 24, 16, 1)),
             ("48 tokens, Ulysses of 2 in rings of 3, where sending decides", (48, 2, 3, 8, 4, 5, 400, 7, 1)),
             ("48 tokens, Ulysses of 2 in rings of 3, where computing decides", (48, 2, 3, 8, 4, 5, 90, 7, 300)),
             ("1M tokens, a ring of 64", (1 << 20, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("1M tokens, Ulysses of 8 in rings of 8", (1 << 20, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, a ring of 64", (1 << 17, 1, 64, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 in rings of 8", (1 << 17, 8, 8, 64, 8, 128, H100, NVLINK, NDR)),
             ("128K tokens, Ulysses of 8 alone", (1 << 17, 8, 1, 64, 8, 128, H100, NVLINK, NDR)))

    def solve(self, T: int, u: int, R: int, H: int, K: int, d: int, flops_per_s: float, fast: float, slow: float
              ) -> float:
        switching = (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast  # all-to-alls
        computing = 4 * d * (T / R) ** 2 / 2 * H / u / flops_per_s  # with one block
        sending = 2 * 2 * d * K / u * T / R / slow
        return switching + (R - 1) * max(computing, sending) + computing

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        u, R, K = 2 ** source.randint(1, 2), 2 ** source.randint(2, 4), 4
        T, H, W = 1024 * R * source.randint(1, 3), K * source.randint(4, 10), source.randint(1, 20)
        return f"{T} tokens, u = {u}, R = {R}, H = {H}, {W} GB/s", (T, u, R, H, K, 128, H100, NVLINK, W * 1e9)


class DocumentPositions(Exercise):
    number = "7.3"
    compared = "returned"
    right = "every token is on one rank"
    budget = "par: no rank has more to do than the mean"
    run = staticmethod(plain.tensor)
    sizes = (3, 3), (2, 2), (1, 2), (4, 5)

    def example_trial(self) -> Trial:
        return Trial([[[4, 8]]] * 2, "the example, 2 ranks, documents of [4, 8] tokens")

    def draw_trial(self, generator: torch.Generator, R: int, num_documents: int) -> Trial:
        lengths = [2 * R * length for length in torch.randint(2, 9, (num_documents,), generator=generator).tolist()]
        lengths[0] += 12 * R  # no two layouts are the same
        return Trial([[lengths]] * R, f"{ranks_of(R)}, documents of {lengths} tokens")

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        R, T, given = trial.world_size, sum(trial.inputs[0][0]), self.select_parts(answers)
        for rank, own in enumerate(given):
            if not readable(own) or own.dtype != torch.int64 or own.shape != (T // R,):
                return f"rank {rank} returned {describe(own)}: expected the positions of T/R tokens, int64[{T // R}]"
        num_ranks = Counter(torch.cat(given).tolist())
        token = next((token for token in range(T) if num_ranks[token] != 1), None)
        return None if token is None else (
            f"token {token} is on {num_ranks[token]} ranks: each of the row's {T} tokens has to be on one. "
            "Positions are counted in the row, not in the document")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> Sequence[Spent]:
        costs = torch.cat([torch.arange(1, length + 1) for length in trial.inputs[0][0]])
        work = [costs[own].sum().item() for own in self.select_parts(answers)]
        return [highest("has more to do than the mean, by", [own * len(work) / sum(work) - 1 for own in work], 0.0,
                        "share", limit="par {}", slack=1e-9, decides=True)]
