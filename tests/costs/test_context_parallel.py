"""Work and bytes of context parallelism against closed forms."""

import pytest

from course_lib.costs.context_parallel import (
    imbalance,
    ring_attention_bytes,
    ring_work,
    ulysses_attention_bytes,
    ulysses_key_heads,
)


def test_zigzag_is_even_to_the_pair_and_contiguous_gives_the_last_rank_almost_twice_the_mean():
    for R in (2, 4, 8, 64):
        assert imbalance(ring_work(128 * R, R, "zigzag")) == 0
        assert imbalance(ring_work(128 * R, R, "contiguous")) == pytest.approx((R - 1) / R, rel=0.02)
        assert imbalance(ring_work(128 * R, R, "striped")) < 0.01
        assert imbalance(ring_work(128 * R, R, "contiguous", causal=False)) == 0


def test_a_ring_sends_the_same_however_many_ranks_there_are_and_ulysses_less():
    ring = [sum(ring_attention_bytes(1, 8, 2**17, 128, R, 4)) for R in (2, 4, 8, 1024)]
    ulysses = [sum(ulysses_attention_bytes(1, 8, 8, 2**17, 128, R, 4)) for R in (2, 4, 8)]
    M = 2 * 8 * 2**17 * 128 * 4
    assert ring == [3 * M * (R - 1) // R for R in (2, 4, 8, 1024)]
    assert ulysses == [4 * M * (R - 1) // R**2 for R in (2, 4, 8)]


def test_in_16_bits_gradients_travel_in_32():
    assert ring_attention_bytes(1, 2, 64, 8, 2, 2) == (2 * 2 * 32 * 8 * 2, 2 * 2 * 32 * 8 * 6)


def test_key_heads_are_repeated_as_often_as_needed_and_no_more():
    assert [ulysses_key_heads(12, K, 4) for K in (12, 4, 2, 1)] == [12, 4, 4, 4]
    assert ulysses_key_heads(6, 2, 3) == 6 and ulysses_key_heads(32, 8, 8) == 8 and ulysses_key_heads(32, 8, 16) == 16
    with pytest.raises(ValueError, match="12 query heads on 5 ranks"):
        ulysses_key_heads(12, 4, 5)
