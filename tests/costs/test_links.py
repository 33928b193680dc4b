"""collective_time is the alpha-beta formula of each algorithm, and fit_link finds alpha and beta again."""

import math

import numpy as np
import pytest

from course_lib.costs.links import Link, collective_time, fit_link, hardware_link

ALPHA, BETA = Link(1.0, 0.0), Link(0.0, 1.0)  # counts the messages, counts the bytes


def counted(op, algorithm, n, num_bytes=840.0):
    return tuple(collective_time(op, algorithm, num_bytes, n, link) for link in (ALPHA, BETA))


@pytest.mark.parametrize("n", range(1, 9))
def test_the_cost_counts_the_messages_and_bytes_of_the_published_formulas(n):
    M, log = 840.0, math.ceil(math.log2(n))
    ring = (n - 1, pytest.approx((n - 1) / n * M))
    assert counted("all_reduce", "ring", n) == (2 * (n - 1), pytest.approx(2 * (n - 1) / n * M))
    assert counted("all_reduce", "naive", n) == (2 * (n - 1), 2 * (n - 1) * M)
    assert counted("all_reduce", "tree", n) == (2 * log, 2 * log * M)
    assert counted("broadcast", "tree", n) == counted("reduce", "tree", n) == (log, log * M)
    for op, algorithm in [("reduce_scatter", "ring"), ("all_gather", "ring"), ("all_to_all", "pairwise"),
                          ("gather", "naive"), ("scatter", "naive")]:
        assert counted(op, algorithm, n) == ring


@pytest.mark.parametrize("n, halves, doubled", [(1, (0, 0), 0), (2, (2, 1), 1), (4, (4, 1.5), 2), (8, (6, 1.75), 3),
                                                (3, (4, 1 + 2), 1 + 2), (6, (6, 1.5 + 2), 2 + 2)])
def test_halving_and_doubling_pay_two_whole_messages_when_n_is_no_power_of_two(n, halves, doubled):
    assert counted("all_reduce", "halving_doubling", n) == (halves[0], halves[1] * 840)
    assert counted("all_reduce", "recursive_doubling", n) == (doubled, doubled * 840)


@pytest.mark.parametrize("noise, rel", [(0.0, 1e-6), (0.1, 0.1)])  # of long messages, beside the latency of short ones
def test_fit_link_finds_the_link_that_made_the_times(noise, rel):
    sizes = np.array([2.0**k for k in range(10, 27)])
    link = fit_link(sizes, (2e-5 + 3e-10 * sizes) * np.random.default_rng(0).uniform(1 - noise, 1 + noise, len(sizes)))
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(2e-5, rel=rel), pytest.approx(3e-10, rel=rel))


@pytest.mark.parametrize("sizes, times, alone", [
    ([100, 200], [1.0, 3.0], "beta_s_per_byte"),  # a line through them meets the axis below zero
    ([100, 200], [3.0, 1.0], "alpha_s"),  # longer messages that take less time
])
def test_a_link_never_has_a_negative_constant(sizes, times, alone):
    link = fit_link(sizes, times)
    assert {name for name in ("alpha_s", "beta_s_per_byte") if getattr(link, name) > 0} == {alone}


def test_the_link_of_a_wire_is_nccls_alpha_and_the_data_sheets_beta():
    assert hardware_link("InfiniBand HDR") == Link(14e-6, 1 / 25e9)
    assert hardware_link("NVLink 3 (A100)").alpha_s == pytest.approx(3.4e-6)
    assert hardware_link("Ethernet 10G").alpha_s == hardware_link("Ethernet 1G").alpha_s > 3 * 14e-6  # TCP's own
