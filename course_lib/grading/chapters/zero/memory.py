"""Exercise 6.1: bytes that a rank holds by stage, every parameter cut on its own."""

import random
from collections.abc import Iterable
from math import ceil
from typing import Any

from course_lib.grading.numbers import NumberExercise

TINY = ([1000, 9, 7, 5], 4)  # elements of each parameter, ranks: none of them a multiple
GPT2_BLOCK = [768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768, 768, 768, 768, 768, 768]


class BytesPerRank(NumberExercise):
    number = "6.1"
    function = "my_bytes_per_rank"
    points = 2
    budget = "to the byte, the zeros that fill up the last piece included"
    unit = "exact bytes"
    hints = (
        "A piece of a parameter with N elements has ceil(N/n) of them, on every rank. Which of the three groups are "
        "cut at stage 1, at 2, at 3? Each stage cuts what the one before it cuts.",
        "Two numbers do for everything: the elements of all parameters, and the elements of this rank's pieces, each "
        "rounded up on its own. Each of the three groups has as many bytes as one of the two numbers says, by stage.",
        "whole = sum(sizes)\n"
        "piece = ...  # -(-a // b) is a / b rounded up\n"
        "weights = weight_bytes * (piece if stage >= 3 else whole)\n"
        "return weights + ...  # two more such lines",
    )
    cases = (("[1000, 9, 7, 5] elements in bf16 with AdamW, stage 2 on 4 ranks", (*TINY, 2, 2, 2, 12)),
             ("the same at stage 1", (*TINY, 1, 2, 2, 12)), ("the same at stage 3", (*TINY, 3, 2, 2, 12)),
             ("the same at stage 0", (*TINY, 0, 2, 2, 12)),
             ("[1000, 9, 7, 5] in fp32 with SGD and momentum, stage 1 on 4 ranks", (*TINY, 1, 4, 4, 4)),
             ("a block of GPT-2 in fp32 with AdamW, stage 3 on 64 ranks", (GPT2_BLOCK, 64, 3, 4, 4, 8)))

    def expected(self, sizes: list[int], num_ranks: int, stage: int, weight_bytes: int, gradient_bytes: int,
                 optimizer_bytes: int) -> float:
        whole, piece = sum(sizes), sum(ceil(size / num_ranks) for size in sizes)
        return float(weight_bytes * (piece if stage >= 3 else whole) + gradient_bytes * (piece if stage >= 2 else whole)
                     + optimizer_bytes * (piece if stage >= 1 else whole))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        sizes, n = [source.randint(1, 999) for _ in range(5)], source.randint(3, 40)
        return f"{sizes} elements in bf16 with AdamW, stage 2 on {n} ranks", (sizes, n, 2, 2, 2, 12)

    def mistakes(self, sizes: list[int], num_ranks: int, stage: int, weight_bytes: int, gradient_bytes: int,
                 optimizer_bytes: int) -> Iterable[tuple[str, float]]:
        whole, n = sum(sizes), num_ranks
        groups = (weight_bytes, 3), (gradient_bytes, 2), (optimizer_bytes, 1)

        def held(piece: float, cut: Any = lambda first: stage >= first) -> float:
            return sum(size * (piece if cut(first) else whole) for size, first in groups)

        piece = sum(ceil(size / n) for size in sizes)
        yield ("a piece that is not full is filled up with zeros, which are held as well: ceil(size/n) for every "
               "parameter, not size/n", held(whole / n))
        yield ("every parameter is cut on its own, so every one is filled up: the sum of ceil(size/n), not ceil of the "
               "sum", held(ceil(whole / n)))
        yield ("the pieces are rounded down, so the last elements are on no rank: ceil(size/n)",
               held(sum(size // n for size in sizes)))
        yield "every group is cut at every stage: stage 1 cuts the optimiser's state alone", held(piece, lambda _: True)
        yield ("each stage cuts its own group and nothing else: stages add up, stage 2 cuts what stage 1 cuts too",
               held(piece, lambda first: first == stage))
        yield ("the stages come in another order: first the optimiser's state, then gradients, then weights",
               held(piece, lambda first: stage >= 4 - first))
        yield "the optimiser's state is missing", held(piece) - optimizer_bytes * (piece if stage >= 1 else whole)
        yield "that is what all ranks hold together: one of them is asked", n * held(piece)
