"""Work and bytes of context parallelism against closed forms."""

import pytest

from course_lib.costs.splitting import (
    imbalance,
    ring_attention_bytes,
    ring_work,
    ulysses_attention_bytes,
    ulysses_key_heads,
)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
def test_the_work_of_a_ring_is_that_of_all_pairs_counted_one_by_one(layout, causal):
    for R in (1, 2, 3, 4):
        tokens = range(8 * R)
        holder = {"contiguous": [token // 8 for token in tokens], "striped": [token % R for token in tokens],
                  "zigzag": [min(token // 4, 2 * R - 1 - token // 4) for token in tokens]}[layout]
        counted = [[0] * R for _ in range(R)]
        for query in tokens:
            for key in tokens[:query + 1] if causal else tokens:
                counted[(holder[query] - holder[key]) % R][holder[query]] += 1
        assert ring_work(8 * R, R, layout, causal) == counted


@pytest.mark.parametrize("R", [2, 4, 8])
def test_zigzag_is_even_to_the_pair_and_a_ring_sends_the_same_however_many_ranks_there_are_and_ulysses_less(R):
    assert imbalance(ring_work(128 * R, R, "zigzag")) == 0
    assert imbalance(ring_work(128 * R, R, "contiguous")) == pytest.approx((R - 1) / R, rel=0.02)
    M = 2 * 8 * 2**17 * 128 * 4
    assert sum(ring_attention_bytes(1, 8, 2**17, 128, R, 4)) == 3 * M * (R - 1) // R
    assert sum(ulysses_attention_bytes(1, 8, 8, 2**17, 128, R, 4)) == 4 * M * (R - 1) // R**2
    # in 16 bits gradients travel in 32
    assert ring_attention_bytes(1, 2, 64, 8, 2, 2) == (2 * 2 * 32 * 8 * 2, 2 * 2 * 32 * 8 * 6)


def test_key_heads_are_repeated_as_often_as_needed_and_no_more():
    assert [ulysses_key_heads(12, K, 4) for K in (12, 4, 2, 1)] == [12, 4, 4, 4]
    assert ulysses_key_heads(6, 2, 3) == 6 and ulysses_key_heads(32, 8, 8) == 8 and ulysses_key_heads(32, 8, 16) == 16
