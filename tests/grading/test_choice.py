"""Exercise 2.7 judges a choice by the time it loses: nothing at the crossover, else as much as at the worst size."""

import math

import pytest

from course_lib.costs.links import Link, collective_time
from course_lib.grading.judges.collectives.choice import lost_share

CASES = [(1e-5, 1e-10, 4), (3.4e-6, 2.2e-12, 8), (1e-4, 1e-9, 1024), (9.6e-6, 2e-11, 2)]
SIZES = [2 ** (k / 8) for k in range(8 * 40 + 1)]  # 1 byte to 1 TiB


def times(case, M):
    alpha, beta, n = case
    return [collective_time("all_reduce", name, M, n, Link(alpha, beta)) for name in ("recursive_doubling", "ring")]


def crossover(alpha, beta, n):
    """log2 n (alpha + beta M) = 2(n-1) (alpha + beta M/n), solved for M."""
    more_alphas, more_betas = 2 * (n - 1) - math.log2(n), math.log2(n) - 2 * (n - 1) / n
    return alpha * more_alphas / (beta * more_betas) if more_betas else math.inf


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_at_the_crossover_beyond_which_the_ring_is_faster(case):
    where = crossover(*case)
    assert lost_share(case, where) == pytest.approx(0, abs=1e-9)
    for M in SIZES:
        doubling, ring = times(case, M)
        assert (ring < doubling) == (M > where)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("factor", [0.01, 0.5, 0.99, 1, 1.02, 3, 1000, math.inf])
def test_what_a_choice_loses_is_what_it_loses_at_its_worst_size(case, factor):
    alpha, beta, _ = case
    chosen = factor * min(crossover(*case), alpha / beta)
    by_size = []
    for M in (*SIZES, *(chosen * by for by in (1 - 1e-9, 1 + 1e-9) if math.isfinite(chosen))):
        doubling, ring = times(case, M)
        by_size.append((doubling if M < chosen else ring) / min(doubling, ring) - 1)
    assert lost_share(case, chosen) == pytest.approx(max(by_size), abs=1e-6)
