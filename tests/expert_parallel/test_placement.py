"""Where experts lie so that the busiest rank does least: against trying everything."""

from itertools import combinations_with_replacement

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from course_lib.expert_parallel import place_experts, rank_loads


def least_by_trying_everything(load, num_ranks, num_replicas):
    """Of all ways to put num_replicas / num_ranks experts on each rank."""
    experts, places = range(len(load)), num_replicas // num_ranks
    ranks = list(combinations_with_replacement(experts, places))
    return min(max(rank_loads(placement, load)) for placement in combinations_with_replacement(ranks, num_ranks)
               if {expert for rank in placement for expert in rank} == set(experts))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 2))
def test_few_experts_are_placed_as_well_as_they_can_be(load, num_ranks, places):
    num_replicas = num_ranks * max(places, -(-len(load) // num_ranks))
    if num_replicas > 6:
        num_replicas = num_ranks * -(-len(load) // num_ranks)
    placement = place_experts(load, num_ranks, num_replicas)
    assert [len(rank) for rank in placement] == [num_replicas // num_ranks] * num_ranks
    assert {expert for rank in placement for expert in rank} == set(range(len(load)))
    assert max(rank_loads(placement, load)) == pytest.approx(least_by_trying_everything(load, num_ranks, num_replicas))


def test_a_hot_expert_gets_replicas_on_different_ranks_many_are_almost_even_and_without_replicas_they_are_packed():
    placement = place_experts([90, 10, 10, 10], 3, 6)
    assert all(0 in rank for rank in placement) and rank_loads(placement, [90, 10, 10, 10]) == [40, 40, 40]
    load = [1000 / (rank + 10) for rank in range(256)]  # Zipf
    placement = place_experts(load, 32, 288)
    work = rank_loads(placement, load)
    assert {len(rank) for rank in placement} == {9}
    assert sum(work) == pytest.approx(sum(load)) and max(work) < 1.01 * sum(load) / 32
    assert max(rank_loads(place_experts([4, 3, 3, 2], 2, 4), [4, 3, 3, 2])) == 6 and place_experts([5], 1, 1) == [[0]]


@pytest.mark.parametrize("arguments, said", [
    (([1, 2], 2, 3), "num_replicas=3 of 2 experts on 2 ranks: expected a multiple of 2"),
    (([1, 2, 3], 2, 2), "num_replicas=2 of 3 experts on 2 ranks"),
    (([], 2, 2), "expected a number of 0 or more for each expert"),
    (([-1.0], 1, 1), "expected a number of 0 or more for each expert"),
])
def test_what_cannot_be_placed_is_refused_with_what_was_expected(arguments, said):
    with pytest.raises(ValueError, match=said):
        place_experts(*arguments)
