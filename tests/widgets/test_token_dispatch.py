"""TokenDispatch routes, limits and balances as its formulas say."""

from itertools import product

import pytest
import torch

from course_lib.costs.experts import dropped_rows, expert_capacity
from course_lib.expert_parallel import capacity_mask
from course_lib.pictures.figures import to_png
from course_lib.widgets import TokenDispatch
from course_lib.widgets.base import BadParameter
from course_lib.widgets.token_dispatch import (
    CAPACITIES,
    EXPERTS,
    LONGEST,
    RANKS,
    SKEWS,
    STEPS,
    TOKENS,
    capacity,
    dispatch,
    home,
)
from tests.widgets.pictures import size_and_colours

ALL = list(product(SKEWS, (1, 2), CAPACITIES, (0, STEPS[-1])))


def test_every_token_asks_for_k_different_experts_whatever_the_capacity():
    for skew, k, factor, steps in ALL:
        shown = dispatch(skew, k, factor, steps)
        assert shown.choices == dispatch(skew, k, None, steps).choices
        assert all(len(set(experts)) == k for of_rank in shown.choices for experts in of_rank)


def test_drops_are_what_exceeds_the_capacity_of_each_rank_and_expert_and_second_choices_drop_first():
    for skew, k, factor, steps in ALL:
        shown, limit = dispatch(skew, k, factor, steps), capacity(k, factor)
        counts = [[sum(e in experts for experts in of_rank) for e in range(EXPERTS)] for of_rank in shown.choices]
        over = 0 if limit is None else sum(max(0, n - limit) for of_rank in counts for n in of_rank)
        assert shown.dropped == over and sum(shown.load) == sum(shown.work) == shown.asked_for - over
        for of_rank, kept in zip(shown.choices, shown.kept, strict=True):
            for expert in range(EXPERTS):
                in_order = [kept[token][slot] for slot in range(k) for token in range(TOKENS)
                            if of_rank[token][slot] == expert]
                assert in_order == sorted(in_order, reverse=True)


def test_capacity_is_the_factor_times_even_rows_rounded_up():
    for k in (1, 2):
        expected = [None if factor is None else expert_capacity(factor, k, TOKENS, EXPERTS) for factor in CAPACITIES]
        assert [capacity(k, factor) for factor in CAPACITIES] == expected


def test_the_library_keeps_and_drops_the_same_rows():
    for skew, k, factor, steps in ALL:
        shown, limit = dispatch(skew, k, factor, steps), capacity(k, factor)
        for of_rank, kept in zip(shown.choices, shown.kept, strict=True) if limit is not None else ():
            experts = torch.tensor(of_rank)
            assert capacity_mask(experts, EXPERTS, limit).tolist() == [list(of_token) for of_token in kept]
            counts = experts.flatten().bincount(minlength=EXPERTS).tolist()
            assert sum(not each for of_token in kept for each in of_token) == dropped_rows(counts, limit)


def test_rows_that_stay_on_their_rank_are_not_sent():
    for parameters in ALL:
        shown = dispatch(*parameters)
        stay = sum(home(expert) == rank for expert, rank, *_ in shown.rows)
        assert shown.rows_sent == len(shown.rows) - stay


def test_skew_makes_a_rank_busy_and_balancing_makes_it_even_whatever_the_skew():
    for k in (1, 2):
        unbalanced = [dispatch(skew, k, None, 0).slowest for skew in SKEWS]
        assert unbalanced == sorted(unbalanced) and unbalanced[-1] > 2
        for skew in SKEWS:
            assert dispatch(skew, k, None, STEPS[-1]).slowest < 1.2


def test_every_queue_has_room_in_the_picture():
    assert max(max(dispatch(*parameters).load) for parameters in ALL) <= 2 * LONGEST


def test_ranks_hold_equally_many_experts():
    assert [home(expert) for expert in range(EXPERTS)] == [rank for rank in range(RANKS) for _ in range(2)]


def test_the_headline_is_the_finding():
    assert repr(TokenDispatch()) == (
        "TokenDispatch, popularity 1/place^1, k = 1, no limit, 0 steps of balancing: The busiest rank computes 1.94 "
        "times even work; nothing dropped; there and back 106 rows cross a wire, 868.4 kB at D = 4096 in 16 bits; 96 "
        "rows if even")


def test_the_picture_has_every_colour_and_what_cannot_be_is_refused():
    (width, height), colours = size_and_colours(to_png(TokenDispatch(2.0, 2, 1.0, 0).picture()))
    assert width > 900 and height > 400 and colours > 6
    for wrong in ({"k": 3}, {"skew": 0.3}, {"capacity_factor": 0.1}, {"balancing": -1}):
        with pytest.raises(BadParameter):
            TokenDispatch(**wrong)
