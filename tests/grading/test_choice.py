"""Exercise 2.7 judges a choice by the time it loses: at the worst size, and by the course's own closed forms."""

import math

import pytest

from course_lib.costs.links import Link, collective_time
from course_lib.grading.chapters.collectives.choice import lost
from course_lib.grading.registry import exercise

CASES = [(1e-5, 1e-10, 4), (3.4e-6, 2.2e-12, 8), (1e-4, 1e-9, 1024), (9.6e-6, 2e-11, 2)]
SIZES = [2 ** (k / 8) for k in range(8 * 40 + 1)]  # 1 byte to 1 TiB


def times(case, M):
    alpha, beta, n = case
    return [collective_time("all_reduce", name, M, n, Link(alpha, beta)) for name in ("recursive_doubling", "ring")]


@pytest.mark.parametrize("case", CASES)
def test_at_the_expected_size_both_take_the_same_time_and_beyond_it_the_ring_is_faster(case):
    (crossover,) = exercise("2.7").expected([case])
    if math.isinf(crossover):
        assert all(doubling < ring for doubling, ring in (times(case, M) for M in SIZES))
        return
    doubling, ring = times(case, crossover)
    assert doubling == pytest.approx(ring)
    for M in SIZES:
        doubling, ring = times(case, M)
        assert (ring < doubling) == (M > crossover)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("factor", [0.01, 0.5, 0.99, 1, 1.02, 3, 1000, math.inf])
def test_what_a_choice_loses_is_what_it_loses_at_its_worst_size(case, factor):
    alpha, beta, _ = case
    chosen = factor * min(exercise("2.7").expected([case])[0], alpha / beta)
    by_size = []
    for M in (*SIZES, *(chosen * by for by in (1 - 1e-9, 1 + 1e-9) if math.isfinite(chosen))):
        doubling, ring = times(case, M)
        by_size.append((doubling if M < chosen else ring) / min(doubling, ring) - 1)
    assert lost(case, chosen) == pytest.approx(max(by_size), abs=1e-6)
