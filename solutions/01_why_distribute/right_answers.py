"""Right answers to the exercises of chapter 1 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

from fractions import Fraction

import numpy
import torch

from tools.answers import right

RIGHT = [
    right("1.1", "a Fraction")(
        lambda N, stage, n: (
            Fraction(int(N))
            * sum(Fraction(size, n if stage >= first else 1) for size, first in ((12, 1), (2, 2), (2, 3)))
        )
    ),
    right("1.1", "numpy's number")(
        lambda N, stage, n: (
            numpy.float64(N) * numpy.dot([12, 2, 2], numpy.where(stage >= numpy.array([1, 2, 3]), 1 / n, 1))
        )
    ),
    right("1.2", "a tensor")(
        lambda N, D, n, peak, share: torch.tensor(6.0 * N * D, dtype=torch.float64) / (n * peak * 1e12 * share * 86_400)
    ),
    right("1.2", "by hours, in another order")(
        lambda N, D, n, peak, share: N / n * 6 / (peak * 1e12) * D / share / 3600 / 24
    ),
    right("1.3", "numpy's number, clipped to a share")(
        lambda N, T, s, n, peak, recompute: numpy.clip(6 * N * T / s / n / peak, 0, 1)
    ),
    right("1.3", "from what forward and backward take apart")(
        lambda N, T, s, n, peak, recompute: (2 * N * T + 4 * N * T) / (n * peak) / s
    ),
    right("1.4", "solved by bisection")(lambda n, one, many: solved(n, one, many)),
    right("1.4", "from the speed-up, a tensor")(
        lambda n, one, many: torch.tensor(max(0.0, (1 - 1 / (one / many)) / (1 - 1 / n)), dtype=torch.float64)
    ),
    right("1.6", "numpy's ceiling")(
        lambda N, D, days, share: numpy.ceil(
            max(6 * N * D / (days * 86_400 * 989.5e12 * share), 16 * N / 40e9) / 8
        ).astype(int)
    ),
    right("1.6", "counted up until it will do")(
        lambda N, D, days, share: next(
            nodes
            for nodes in range(1, 10**6)
            if (6 * N * D <= 8 * nodes * days * 86_400 * 989.5e12 * share and 16 * N <= 8 * nodes * 40e9)
        )
    ),
]


def solved(n, one, many):
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if one * (1 - middle + middle / n) > many else (low, middle)
    return low


@right("1.5", "unfolded")
def rows_unfolded(tokens, s):
    return tokens.unfold(0, s + 1, s)[dist.get_rank()::dist.get_world_size()]


@right("1.5", "by index")
def rows_by_index(tokens, s):
    starts = torch.arange(0, len(tokens) - s, s)[dist.get_rank()::dist.get_world_size()]
    return tokens[starts[:, None] + torch.arange(s + 1)]
