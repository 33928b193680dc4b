"""How experts are dealt out, and what travels where they are equally busy: against counting by hand."""

from itertools import combinations

import pytest

from course_lib.costs.splitting import (
    balanced_expert_bytes,
    combine_bytes,
    dispatch_bytes,
    expert_capacity,
    experts_per_rank,
    first_expert,
    nodes_of_a_token,
    split_expert_bytes,
)


def test_experts_are_dealt_out_evenly_and_an_even_share_is_rounded_up():
    assert [experts_per_rank(*each) for each in ((8, 4), (8, 3), (4, 3))] == [[2] * 4, [2, 3, 3], [1, 1, 2]]
    assert experts_per_rank(2, 4) == [0, 1, 0, 1] and first_expert(4, 3, 2) == 2
    assert expert_capacity(1.0, 2, 96, 8) == 24 and expert_capacity(1.25, 1, 10, 4) == 4


def test_even_counts_send_what_the_formula_says():
    R, E, k, N, D, w = 4, 8, 2, 96, 32, 2
    counts = [[N * k // E] * E] * R
    assert [a + b for a, b in zip(dispatch_bytes(counts, D, w), combine_bytes(counts, D, w))] == [
        balanced_expert_bytes(N, k, D, R, w)] * R
    assert split_expert_bytes(N, D, R, w) == balanced_expert_bytes(N, k, D, R, w) * R / k


def test_nodes_of_a_token_is_the_mean_over_all_choices():
    for E, n, k in ((8, 4, 2), (12, 3, 4), (6, 2, 1)):
        drawn = [len({expert // (E // n) for expert in chosen}) for chosen in combinations(range(E), k)]
        assert nodes_of_a_token(E, n, k) == pytest.approx(sum(drawn) / len(drawn))
