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


@pytest.mark.parametrize("n, messages, volume", [(1, 0, 0), (2, 2, 1), (4, 4, 1.5), (8, 6, 1.75),
                                                 (3, 4, 1 + 2), (6, 6, 1.5 + 2)])
def test_halving_doubling_pays_two_whole_messages_when_n_is_no_power_of_two(n, messages, volume):
    assert counted("all_reduce", "halving_doubling", n) == (messages, volume * 840)


@pytest.mark.parametrize("n, messages", [(1, 0), (2, 1), (4, 2), (8, 3), (3, 1 + 2), (6, 2 + 2)])
def test_recursive_doubling_sends_the_whole_message_each_time_and_takes_half_the_steps(n, messages):
    assert counted("all_reduce", "recursive_doubling", n) == (messages, messages * 840)


def test_short_messages_favour_the_tree_and_long_ones_the_ring():
    link = Link(alpha_s=1e-5, beta_s_per_byte=1e-9)

    def winner(num_bytes):
        return min(("tree", "ring"), key=lambda name: collective_time("all_reduce", name, num_bytes, 8, link))

    assert [winner(num_bytes) for num_bytes in (0, 1024, 1 << 20)] == ["tree", "tree", "ring"]


def test_a_reduce_scatter_and_an_all_gather_cost_an_all_reduce():
    link = Link(3e-6, 2e-10)
    halves = sum(collective_time(op, "ring", 10**6, 5, link) for op in ("reduce_scatter", "all_gather"))
    assert halves == pytest.approx(collective_time("all_reduce", "ring", 10**6, 5, link))


def test_fit_link_finds_the_link_that_made_the_times():
    sizes = [2**k for k in range(10, 27, 2)]
    link = fit_link(sizes, [2e-5 + 3e-10 * size for size in sizes])
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(2e-5), pytest.approx(3e-10))


def test_noise_on_long_messages_does_not_drown_the_latency_of_short_ones():
    sizes = np.array([2.0**k for k in range(10, 27)])
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(sizes))
    link = fit_link(sizes, (2e-5 + 3e-10 * sizes) * noise)
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(2e-5, rel=0.1), pytest.approx(3e-10, rel=0.1))


@pytest.mark.parametrize("sizes, times, alone", [
    ([100, 200], [1.0, 3.0], "beta_s_per_byte"),  # a line through them meets the axis below zero
    ([100, 200], [3.0, 1.0], "alpha_s"),  # longer messages that take less time
])
def test_a_link_never_has_a_negative_constant(sizes, times, alone):
    link = fit_link(sizes, times)
    assert {name for name in ("alpha_s", "beta_s_per_byte") if getattr(link, name) > 0} == {alone}


@pytest.mark.parametrize("call, said", [
    (lambda: collective_time("all_reduce", "star", 8, 2, ALPHA), "no cost for op='all_reduce' with algorithm='star'"),
    (lambda: collective_time("all_reduce", "ring", -8, 2, ALPHA), "num_bytes=-8: expected"),
    (lambda: collective_time("all_reduce", "ring", 8, 0, ALPHA), "world_size=0: expected a whole number of 1"),
    (lambda: collective_time("all_reduce", "ring", 8, 2.5, ALPHA), "world_size=2.5: expected a whole number"),
    (lambda: Link(-1e-6, 0.0), "alpha_s=-1e-06: expected"),
    (lambda: Link(0.0, math.nan), "beta_s_per_byte=nan: expected"),
    (lambda: fit_link([1, 2], [1.0]), "2 sizes and 1 times: expected two lists of the same length"),
    (lambda: fit_link([4, 4], [1.0, 2.0]), "at least two different sizes"),
    (lambda: fit_link([], []), r"sizes_bytes=\[\]: expected at least two"),
    (lambda: fit_link([-1, 2], [1.0, 2.0]), "expected finite numbers of 0 or more"),
    (lambda: fit_link([1, 2], [0.0, 2.0]), "expected finite numbers above 0"),
])
def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_the_link_of_a_wire_is_nccls_alpha_and_the_data_sheets_beta():
    assert hardware_link("InfiniBand HDR") == Link(14e-6, 1 / 25e9)
    assert hardware_link("NVLink 3 (A100)").alpha_s == pytest.approx(3.4e-6)
    assert hardware_link("Ethernet 10G").alpha_s == hardware_link("Ethernet 1G").alpha_s > 3 * 14e-6  # TCP's own
    with pytest.raises(ValueError, match="no interconnect is called .carrier pigeon"):
        hardware_link("carrier pigeon")
