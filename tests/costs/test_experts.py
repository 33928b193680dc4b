"""What travels to experts, what is dropped, and how wide an expert has to be: against counting by hand."""

from itertools import combinations, product

import pytest

from course_lib.costs.experts import (
    balanced_expert_bytes,
    combine_bytes,
    count_bytes,
    count_sent_rows,
    dispatch_bytes,
    dropped_rows,
    expert_capacity,
    expert_layer_parameters,
    experts_per_rank,
    first_expert,
    nodes_of_a_token,
    slow_rows,
    split_expert_bytes,
    two_level_bytes,
)


def test_experts_are_dealt_out_evenly_where_that_is_possible_and_otherwise_almost():
    assert experts_per_rank(8, 4) == [2, 2, 2, 2] and experts_per_rank(8, 3) == [2, 3, 3]
    assert experts_per_rank(4, 3) == [1, 1, 2] and first_expert(4, 3, 2) == 2
    assert experts_per_rank(2, 4) == [0, 1, 0, 1]


def test_even_counts_send_what_the_formula_says():
    R, E, k, N, D, w = 4, 8, 2, 96, 32, 2
    counts = [[N * k // E] * E] * R
    assert [a + b for a, b in zip(dispatch_bytes(counts, D, w), combine_bytes(counts, D, w))] == [
        balanced_expert_bytes(N, k, D, R, w)] * R
    assert split_expert_bytes(N, D, R, w) == balanced_expert_bytes(N, k, D, R, w) * R / k


def test_counts_say_who_sends_what():
    counts = [[3, 1, 0, 2], [5, 0, 0, 0]]  # on two ranks: experts 0 and 1 on the first
    assert count_sent_rows(counts) == [[4, 2], [5, 0]]
    assert dispatch_bytes(counts, 10, 2) == [2 * 20, 5 * 20] and combine_bytes(counts, 10, 2) == [5 * 20, 2 * 20]


def test_capacity_is_the_even_share_times_its_factor_rounded_up_and_drops_are_what_is_above():
    assert expert_capacity(1.0, 2, 96, 8) == 24 and expert_capacity(1.25, 1, 10, 4) == 4
    assert dropped_rows([30, 24, 0, 42], 24) == 24


def test_nodes_of_a_token_is_the_mean_over_all_choices():
    for E, n, k in ((8, 4, 2), (12, 3, 4), (6, 2, 1)):
        drawn = [len({expert // (E // n) for expert in chosen}) for chosen in combinations(range(E), k)]
        assert nodes_of_a_token(E, n, k) == pytest.approx(sum(drawn) / len(drawn))


@pytest.mark.parametrize("gated, biases, num_shared", [*product((True, False), (True, False), (0, 2))])
def test_a_rank_holds_the_router_its_experts_and_the_shared_ones_matrix_by_matrix(gated, biases, num_shared):
    D, F, E, R = 8, 12, 5, 3
    for rank, own in enumerate([1, 2, 2]):
        widths = [F] * own + ([num_shared * F] if num_shared else [])
        matrices = [(D, width) for width in widths for _ in range(1 + gated)] + [(width, D) for width in widths]
        counted = D * E + sum(rows * columns + (columns if biases else 0) for rows, columns in matrices)
        assert expert_layer_parameters(D, F, E, R, rank, gated, biases, num_shared) == counted
        assert count_bytes(E, R, rank) == 8 * (E - own)


def test_in_two_levels_a_row_crosses_once_for_each_node():
    assert slow_rows([[0, 0], [0, 1], [1, 1], [2, 1]], node=0) == (5, 4)
    assert two_level_bytes(10, 2, 64, 2) == (10 * (128 + 24), 10 * 128)
