"""From how many tokens on the messages hide: published bounds, and both times written out."""

import pytest

from course_lib.costs.links import Link
from course_lib.costs.network import Network, network_of
from course_lib.costs.overlap import (
    data_parallel_tokens,
    fully_sharded_tokens,
    ring_attention_tokens,
    smallest_ffn_size,
)
from course_lib.costs.splitting import ring_attention_bytes

H100, C = network_of("H100"), 990e12
NO_LATENCY = Network(8, Link.of_rate(300e9), Link.of_rate(25e9), 8)
GROUPS = [NO_LATENCY.group(*each) for each in ((2, 1), (8, 1), (3, 8), (16, 1), (64, 1), (12, 4))]


BOUNDS = [  # found, expected
    # Austin et al. 2025: 2,200 tokens in a node and 2,475 beyond, at the full peak, with many ranks
    (data_parallel_tokens(H100.group(1024), C), 2475 * 1023 / 1024),
    (data_parallel_tokens(H100.group(8), C), 2200 * 7 / 8), (data_parallel_tokens(H100.group(1024), 0.4 * C), 989),
    (fully_sharded_tokens(H100.group(1024), C)[0], 2475 * 1023 / 1024),
    (fully_sharded_tokens(H100.group(1024), C)[1], 2475 * 1023 / 1024),
    # a ring across nodes has one card however it stands
    *((ring_attention_tokens(H100.group(16, stride), C, 64, 8)[0], 2 / 8 * C / 50e9) for stride in (1, 2, 4, 8)),
    # of eight nodes an eighth of the rows stays at home, not one in 64: seven others are reached without the network
    (smallest_ffn_size(H100.group(64), C)[0], 2 / 3 * 7 / 8 * C / 50e9),
    (smallest_ffn_size(H100.group(8), C)[0], 2 / 3 * 7 / 8 * C / 450e9)]


def test_the_bounds_are_published_ones_or_those_of_the_slowest_wire():
    assert [found for found, _ in BOUNDS] == pytest.approx([expected for _, expected in BOUNDS], rel=1e-4)


@pytest.mark.parametrize("group, weight, gradient", [*zip(GROUPS, (2, 2, 4) * 2, (2, 4, 4) * 2)])
def test_with_so_many_tokens_both_times_are_equal(group, weight, gradient):
    N, F = 7e9, 125e12
    T = data_parallel_tokens(group, F, gradient)
    ring = 2 * (group.n - 1) / group.n * gradient * N * group.ring_s_per_byte
    assert 4 * N * T / F == pytest.approx(ring)
    forward, backward = fully_sharded_tokens(group, F, weight, gradient)
    gather, scatter = (group.seconds(op, M * N) for op, M in (("all_gather", weight), ("reduce_scatter", gradient)))
    assert 2 * N * forward / F == pytest.approx(gather)
    assert 4 * N * backward / F == pytest.approx(gather + scatter)


@pytest.mark.parametrize("group, w", [*zip(GROUPS, (2, 4) * 3)])
def test_a_block_of_so_many_tokens_takes_as_long_to_compute_as_the_next_to_come(group, w):
    F, H, K, d, R = 400e12, 64, 8, 128, group.n
    for c, flops, sent in zip(ring_attention_tokens(group, F, H, K, w), (2, 5),
                              ring_attention_bytes(1, K, 1024 * R, d, R, w)):
        block = sent / (R - 1) / 1024 * c  # bytes of c tokens
        assert flops * c * c * H * d / F == pytest.approx(group.seconds("ring", block))


@pytest.mark.parametrize("group, gated", [*zip(GROUPS, (True, False) * 3)])
def test_an_expert_so_wide_computes_as_long_as_its_rows_travel(group, gated):
    F, k, N, D, w = 600e12, 2, 512, 1024, 2
    forward, backward = smallest_ffn_size(group, F, gated, w)
    travel, flops_of_width_1 = 2 * group.seconds("all_to_all", k * N * D * w), 2 * (3 if gated else 2) * k * N * D
    assert flops_of_width_1 * forward / F == pytest.approx(travel)
    assert 2 * flops_of_width_1 * backward / F == pytest.approx(travel)
