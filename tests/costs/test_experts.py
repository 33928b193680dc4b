"""What travels to experts, what is dropped, and how wide an expert has to be: against counting by hand."""

from itertools import combinations, product

import pytest

from course_lib.costs.splitting import (
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

COUNTS = [[3, 1, 0, 2], [5, 0, 0, 0]]  # on two ranks: experts 0 and 1 on the first


@pytest.mark.parametrize("function, arguments, expected", [
    (experts_per_rank, (8, 4), [2, 2, 2, 2]), (experts_per_rank, (8, 3), [2, 3, 3]),
    (experts_per_rank, (4, 3), [1, 1, 2]), (experts_per_rank, (2, 4), [0, 1, 0, 1]), (first_expert, (4, 3, 2), 2),
    (count_sent_rows, (COUNTS,), [[4, 2], [5, 0]]),
    (dispatch_bytes, (COUNTS, 10, 2), [2 * 20, 5 * 20]), (combine_bytes, (COUNTS, 10, 2), [5 * 20, 2 * 20]),
    (expert_capacity, (1.0, 2, 96, 8), 24), (expert_capacity, (1.25, 1, 10, 4), 4),  # of an even share, rounded up
    (dropped_rows, ([30, 24, 0, 42], 24), 24),
    (slow_rows, ([[0, 0], [0, 1], [1, 1], [2, 1]], 0), (5, 4)),  # in two levels a row crosses once for each node
    (two_level_bytes, (10, 2, 64, 2), (10 * (128 + 24), 10 * 128))])
def test_experts_are_dealt_out_evenly_and_rows_are_counted_as_by_hand(function, arguments, expected):
    assert function(*arguments) == expected


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


@pytest.mark.parametrize("gated, biases, num_shared", [*product((True, False), (True, False), (0, 2))])
def test_a_rank_holds_the_router_its_experts_and_the_shared_ones_matrix_by_matrix(gated, biases, num_shared):
    D, F, E, R = 8, 12, 5, 3
    for rank, own in enumerate([1, 2, 2]):
        widths = [F] * own + ([num_shared * F] if num_shared else [])
        matrices = [(D, width) for width in widths for _ in range(1 + gated)] + [(width, D) for width in widths]
        counted = D * E + sum(rows * columns + (columns if biases else 0) for rows, columns in matrices)
        assert expert_layer_parameters(D, F, E, R, rank, gated, biases, num_shared) == counted
        assert count_bytes(E, R, rank) == 8 * (E - own)
