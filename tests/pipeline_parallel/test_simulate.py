"""Simulated idle time and memory equal what the papers say, exactly; published bubble rates come out of it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.costs import bubbles
from course_lib.facts import BUBBLE_RATES
from course_lib.pipeline_parallel import (
    Action,
    InvalidSchedule,
    Schedule,
    Simulation,
    TimedAction,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.dependencies import Result, leaves, needs
from course_lib.pipeline_parallel.published import fit, predict

SHAPES = [(p, m) for p in (1, 2, 3, 4, 6) for m in sorted({1, p, 2 * p - 1, 2 * p, 4 * p, 4 * p + 1})]
COSTS = [(1, 1, 1), (3, 5, 2), (5, 3, 2), (5, 4, 0), (Fraction(1, 3), Fraction(1, 2), Fraction(1, 7))]
many_examples = settings(max_examples=60)


@pytest.mark.parametrize("p, m", SHAPES)
def test_naive_gpipe_and_1f1b_are_idle_as_the_formulas_say_whatever_the_costs(p, m):
    for F, I, W in COSTS:  # noqa: E741
        for generate in (gpipe, one_f_one_b):
            simulated = simulate(generate(p, m), F, I, W)
            assert simulated.bubble_fraction == bubbles.bubble_of_total(p, m)
            assert simulated.bubble_of_ideal == bubbles.bubble_of_ideal(p, m)
        assert simulate(naive(p, m), F, I, W).bubble_fraction == bubbles.naive_bubble(p)


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("p, rounds", [(1, 3), (2, 1), (3, 2), (4, 1), (4, 4)])
def test_interleaving_divides_the_bubble_by_v(p, rounds, v):
    m = p * rounds
    for F, I, W in COSTS:  # noqa: E741
        simulated = simulate(interleaved_1f1b(p, m, v), F, I, W)
        assert simulated.bubble_fraction == bubbles.bubble_of_total(p, m, v)
        assert simulated.bubble_of_ideal == bubbles.bubble_of_ideal(p, m, v)


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SHAPES if m >= p])
def test_zb_h1_waits_for_f_plus_i_minus_w_a_rank(p, m):
    for F, I, W in COSTS:  # noqa: E741
        assert simulate(zb_h1(p, m), F, I, W).bubble_fraction == bubbles.zb_h1_bubble(p, m, F, I, W)


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SHAPES if m >= 2 * p - 1])
def test_zb_h2_and_zb_v_have_no_bubble_between_a_ranks_own_start_and_end_for_equal_costs(p, m):
    assert simulate(zb_h2(p, m)).span == 3 * m
    assert simulate(zb_v(p, m)).span == 2 * 3 * m  # a chunk of half the layers costs 1
    for F, I, W in COSTS:  # noqa: E741
        span = simulate(zb_h2(p, m), F, I, W).span
        assert span == m * (F + I + W) + (p - 1) * (F + I - 2 * W)  # Qi et al. 2023, table 1


@pytest.mark.parametrize("p, m", [(p, m) for p, m in SHAPES if m >= 2 * p])
def test_dualpipe_v_waits_as_long_as_the_table_of_deepseek_says(p, m):
    for F, I, W, pair in [(1, 1, 1, 3), (10, 10, 10, 25), (10, 11, 9, 27), (2, 3, 2, 5)]:  # noqa: E741
        idle = idle_in_pairs(dualpipe_v(p, m), {"F": F, "I": I, "W": W, "B": I + W}, pair)
        table_2 = (p - 1) * (pair + (I + W) - 3 * W)  # DeepSeek-AI 2024, with 2p stages on p ranks and F <= I
        assert max(idle) == idle[-1] == table_2


def idle_in_pairs(schedule: Schedule, costs: dict[str, int], pair: int) -> list[int]:
    """Each rank's idle time where an F and the whole B of another micro-batch behind it run as one, as in DualPipe."""
    lanes: list[list[list[Action]]] = [[] for _ in schedule.actions]
    for rank, _, action in schedule.positions():
        last = lanes[rank][-1] if lanes[rank] else []
        if [each.kind for each in (*last, action)] == ["F", "B"] and last[0].microbatch != action.microbatch:
            last.append(action)
        else:
            lanes[rank].append([action])
    there: dict[Result, int] = {}
    free, busy, left = [0] * len(lanes), [0] * len(lanes), [lane[::-1] for lane in lanes]
    while any(left):
        for rank, lane in enumerate(left):
            stages = schedule.stages[rank]
            while lane and all(need in there for action in lane[-1]
                               for need in needs(action, stages[action.chunk], schedule.num_stages)):
                actions = lane.pop()
                start = max([free[rank], *(there[need] for action in actions
                                           for need in needs(action, stages[action.chunk], schedule.num_stages))])
                cost = pair if len(actions) > 1 else costs[actions[0].kind]
                free[rank], busy[rank] = start + cost, busy[rank] + cost
                there |= {leaves(action, stages[action.chunk]): free[rank] for action in actions}
    return [max(free) - of_rank for of_rank in busy]


def test_a_pair_that_runs_one_after_the_other_halves_dualpipes_bubble():
    """F is through before B, so that the next rank need not wait for both."""
    assert simulate(dualpipe_v(4, 8)).idle == (3, 3, 3, 3)
    assert idle_in_pairs(dualpipe_v(4, 8), {"F": 1, "I": 1, "W": 1, "B": 2}, pair=3) == [6, 6, 6, 6]


@pytest.mark.parametrize("p, m", SHAPES)
def test_the_peak_in_flight_is_the_papers(p, m):
    ranks = range(p)
    assert simulate(naive(p, m)).peak_in_flight == (1,) * p
    assert simulate(gpipe(p, m)).peak_in_flight == tuple(bubbles.peak_gpipe(p, m, r) for r in ranks) == (m,) * p
    assert simulate(one_f_one_b(p, m)).peak_in_flight == tuple(bubbles.peak_1f1b(p, m, r) for r in ranks)
    if m % p == 0:
        for v in (2, 3):
            peak = simulate(interleaved_1f1b(p, m, v)).peak_in_flight
            assert peak == tuple(bubbles.peak_interleaved(p, m, v, r) for r in ranks)
            if m >= 2 * p:
                assert Fraction(peak[0], v) == p * (1 + Fraction(p - 1, p * v))  # Korthikanti et al. 2022
    assert max(simulate(zb_h1(p, m)).peak_in_flight) == min(p, m)
    assert max(simulate(zb_h2(p, m)).peak_in_flight) == min(2 * p - 1, m)
    if m >= 2 * p:
        assert simulate(zb_h1(p, m)).peak_in_flight == (p,) * p
        assert simulate(zb_v(p, m)).peak_activations == (p,) * p
        assert simulate(dualpipe_v(p, m)).peak_in_flight == (2 * p + 1,) * p


def test_weight_gradients_that_wait_hold_activations():
    def order(*kinds: str) -> Schedule:
        return Schedule("one rank", 2, ((0,),), (tuple(Action(each[0], int(each[1])) for each in kinds),))

    assert simulate(order("F0", "I0", "W0", "F1", "I1", "W1")).peak_in_flight == (1,)
    assert simulate(order("F0", "I0", "F1", "I1", "W0", "W1")).peak_in_flight == (2,)


@many_examples
@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([gpipe, one_f_one_b, zb_h1, zb_h2, zb_v, dualpipe_v]),
       st.lists(st.integers(0, 5), min_size=8, max_size=8), st.integers(0, 3))
def test_every_action_starts_when_its_rank_is_free_and_its_inputs_are_there(p, m, generate, costs, p2p):
    schedule = generate(p, m)
    costs = costs[: schedule.num_stages]
    simulated = simulate(schedule, costs, costs[::-1], 1, p2p)
    assert [tuple(box.action for box in boxes) for boxes in simulated.by_rank] == list(schedule.actions)
    for boxes in simulated.by_rank:
        assert boxes[0].start >= 0 and all(now.end <= after.start for now, after in zip(boxes, boxes[1:]))
    ends = {(box.action.kind.replace("I", "B"), box.action.microbatch, box.stage): box for box in simulated.timeline}
    for box in simulated.timeline:
        kind, i = box.action.kind, box.action.microbatch
        before = ends.get(("F", i, box.stage - 1) if kind == "F" else ("B", i, box.stage + (kind != "W")))
        if before:
            assert box.start >= before.end + (p2p if before.rank != box.rank else 0)
    assert sum(simulated.busy) + sum(simulated.idle) == p * simulated.makespan


@many_examples
@given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([gpipe, one_f_one_b, zb_h1, zb_v]), st.integers(0, 3))
def test_the_path_to_the_last_end_explains_the_whole_makespan(p, m, generate, p2p):
    simulated = simulate(generate(p, m), 3, 4, 2, p2p)
    path = path_to_the_end(simulated)
    messages = sum(box.rank != after.rank for box, after in zip(path, path[1:]))
    assert path[0].start == 0
    assert sum(box.duration for box in path) + p2p * messages == simulated.makespan


def test_a_slow_stage_is_on_the_critical_path_of_every_micro_batch():
    path = path_to_the_end(simulate(one_f_one_b(4, 8), [1, 1, 3, 1], [1, 1, 3, 1], [1, 1, 3, 1]))
    assert {box.action.microbatch for box in path if box.rank == 2} == set(range(8))


def path_to_the_end(simulated: Simulation) -> tuple[TimedAction, ...]:
    return simulated.path_to(max(simulated.timeline, key=lambda timed: timed.end))


def test_messages_delay():
    assert [simulate(gpipe(2, 4), p2p=time).makespan for time in (0, Fraction(1, 2))] == [15, 16]
    assert simulate(zb_v(1, 4), p2p=100).makespan == 24  # between two stages of one rank there is no message
    assert simulate(gpipe(2, 1), p2p=lambda sender, receiver: 5 if sender == 0 else 7).makespan == 1 + 5 + 3 + 7 + 2


def test_costs_may_depend_on_stage_and_micro_batch():
    first_is_long = simulate(gpipe(2, 2), lambda stage, microbatch: 4 if microbatch == 0 else 1)
    assert [box.duration for box in first_is_long.by_rank[0]][:2] == [4, 1]
    assert simulate(gpipe(2, 1), forward=[2, 3], backward_input=(0, 0), backward_weight=0).makespan == 5
    assert simulate(gpipe(2, 4), *np.array([1, 1, 1])).bubble_fraction == bubbles.bubble_of_total(2, 4)


@pytest.mark.parametrize("wrong, said", [
    ({"forward": -1}, "forward=-1: expected a finite number"), ({"p2p": float("inf")}, "p2p=inf"),
    ({"backward_input": [1, 2, 3]}, "backward_input has 3 costs: expected one, or one for each of 2 stages"),
    ({"backward_weight": [1, "2"]}, r"backward_weight\[1\]='2'"), ({"p2p": True}, "p2p=True"),
    ({"forward": lambda stage, microbatch: float("nan")}, r"forward\(0, 0\)=nan"),
])
def test_costs_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        simulate(gpipe(2, 2), **wrong)


def test_what_cannot_run_is_not_simulated():
    with pytest.raises(InvalidSchedule, match="rank 0: B0 is missing"):
        simulate(Schedule("half", 1, ((0,),), ((Action("F", 0),),)))


def test_the_sentence_has_both_conventions_and_the_memory():
    said = repr(simulate(one_f_one_b(4, 8)))
    assert said == ("1F1B, 4 ranks, 8 micro-batches: 27.3% idle (37.5% of the ideal time), at most 4, 3, 2, 1 "
                    "micro-batches in flight")


@pytest.mark.parametrize("table", BUBBLE_RATES[:2], ids=lambda table: table.model)
def test_published_bubble_rates_follow_from_costs_fitted_on_the_smallest_m(table):
    """1.5B and 6.2B; 28.3B, on 32 ranks, takes seconds: the notebook shows it."""
    costs = fit(table)
    assert 0.5 < costs.backward_weight < 0.7 and 0 < costs.p2p < 0.05
    predicted = predict(table, costs)
    assert len(predicted) == 3 * 4
    assert all(abs(rate - table.rates[m][name].value) < 0.0075 for (m, name), rate in predicted.items())
