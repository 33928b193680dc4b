"""Simulated times are those of a simulator of 20 lines; idle time and memory equal what the papers say, exactly."""

import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.costs import scaling
from course_lib.facts import BUBBLE_RATES
from course_lib.pipeline_parallel import (
    SCHEDULES,
    Action,
    Schedule,
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
from course_lib.pipeline_parallel.simulate import fit_costs, predict_rates
from tests.pipeline_parallel.cases import any_schedule

COSTS = [(1, 1, 1), (3, 5, 2), (5, 3, 2), (5, 4, 0), (Fraction(1, 3), Fraction(1, 2), Fraction(1, 7))]
SHAPES = [(p, m) for p in (1, 2, 3, 4, 6) for m in sorted({1, p, 2 * p - 1, 2 * p, 4 * p, 4 * p + 1})]


def ends_of(schedule, lanes, cost, p2p):
    """When each (kind, micro-batch, stage) ends. lanes: of each rank, groups of actions that run as one.

    All ends are raised from nothing, as far as what they wait for asks, until nothing moves any more.
    """
    rank_of = {stage: rank for rank, stages in enumerate(schedule.stages) for stage in stages}
    ends, before = {}, None
    while ends != before:
        before = dict(ends)
        for rank, lane in enumerate(lanes):
            free = 0
            for group in lane:
                here = [(kind, i, schedule.stages[rank][chunk]) for kind, i, chunk in group]
                needs = [(what, i, s + where) for kind, i, s in here for what, where in {
                    "F": [("F", -1)], "W": [("I", 0)]}.get(kind, [("F", 0), ("B", 1), ("I", 1)])]
                free = max([free, *(ends[each] + (p2p(rank_of[each[2]], rank) if rank_of[each[2]] != rank else 0)
                                    for each in needs if each in ends)]) + cost(here)
                ends |= dict.fromkeys(here, free)
    return ends


@st.composite
def timed(draw):
    """(schedule, arguments of simulate, the same as functions): costs of all forms, whole numbers."""
    source = random.Random(draw(st.integers(0, 10**6)))
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    schedule = draw(st.sampled_from([make(p, m) for make in SCHEDULES.values()]
                                    + [any_schedule(p, m, p + source.randrange(3), source.random())]))
    given_, functions = {}, {}
    for name in ("forward", "backward_input", "backward_weight", "p2p"):
        form = draw(st.sampled_from(["number", "stages", "function"]))
        table = [[source.randint(0, 9) for _ in range(max(m, p))] for _ in range(schedule.num_stages)]
        if form == "number":
            given_[name], functions[name] = table[0][0], lambda a, b, table=table: table[0][0]
        elif form == "stages" and name != "p2p":
            given_[name], functions[name] = [of[0] for of in table], lambda stage, i, table=table: table[stage][0]
        else:
            given_[name] = functions[name] = lambda a, b, table=table: table[a][b]
    return schedule, given_, functions


@settings(max_examples=150)
@given(timed())
def test_every_action_ends_when_the_reference_says_whatever_its_stage_and_micro_batch_cost(case):
    schedule, arguments, of = case
    kinds = {"F": ("forward",), "I": ("backward_input",), "W": ("backward_weight",),
             "B": ("backward_input", "backward_weight")}

    def cost(here):
        return sum(of[name](s, i) for kind, i, s in here for name in kinds[kind])

    ends = ends_of(schedule, [[[action] for action in lane] for lane in schedule.actions], cost, of["p2p"])
    simulated = simulate(schedule, **arguments)
    assert [tuple(box.action for box in boxes) for boxes in simulated.by_rank] == list(schedule.actions)
    for box in simulated.timeline:
        here = (box.action.kind, box.action.microbatch, box.stage)
        assert (box.start, box.end) == (ends[here] - cost([here]), ends[here])
    assert simulated.makespan == max(ends.values())
    assert simulated.busy == tuple(sum(box.duration for box in boxes) for boxes in simulated.by_rank)
    assert sum(simulated.busy) + sum(simulated.idle) == schedule.num_ranks * simulated.makespan
    path = simulated.path_to(max(simulated.timeline, key=lambda box: box.end))
    messages = [of["p2p"](box.rank, after.rank) for box, after in zip(path, path[1:]) if box.rank != after.rank]
    assert path[0].start == 0 and sum(box.duration for box in path) + sum(messages) == simulated.makespan


# Closed forms

@pytest.mark.parametrize("costs", COSTS, ids=str)
def test_ranks_are_idle_as_the_papers_say_whatever_the_costs(costs):
    F, I, W = costs  # noqa: E741
    for p, m in SHAPES:
        for v, schedule in [(1, gpipe(p, m)), (1, one_f_one_b(p, m))] + [
                (v, interleaved_1f1b(p, m, v)) for v in (2, 3) if m % p == 0]:
            simulated = simulate(schedule, F, I, W)
            assert simulated.bubble_fraction == scaling.bubble_of_total(p, m, v)
            assert simulated.bubble_of_ideal == scaling.bubble_of_ideal(p, m, v)
        assert simulate(naive(p, m), F, I, W).bubble_fraction == scaling.naive_bubble(p)
        if m >= p:
            assert simulate(zb_h1(p, m), F, I, W).bubble_fraction == scaling.zb_h1_bubble(p, m, F, I, W)
        if m >= 2 * p - 1:
            span = simulate(zb_h2(p, m), F, I, W).span
            assert span == m * (F + I + W) + (p - 1) * (F + I - 2 * W)  # Qi et al. 2023, table 1
            assert simulate(zb_v(p, m)).span == 2 * 3 * m  # no bubble; a chunk of half the layers costs 1


def test_dualpipe_v_waits_as_long_as_the_table_of_deepseek_says():
    """An F and the whole B of another micro-batch behind it run as one, which takes `pair`."""
    for p, m in ((p, m) for p, m in SHAPES if m >= 2 * p):
        schedule, lanes = dualpipe_v(p, m), []
        for actions in schedule.actions:
            lanes.append([])
            for action in actions:
                last = lanes[-1][-1] if lanes[-1] else []
                if [each.kind for each in (*last, action)] == ["F", "B"] and last[0].microbatch != action.microbatch:
                    last.append(action)
                else:
                    lanes[-1].append([action])
        for F, I, W, pair in [(1, 1, 1, 3), (10, 10, 10, 25), (10, 11, 9, 27), (2, 3, 2, 5)]:  # noqa: E741
            costs = {"F": F, "I": I, "W": W, "B": I + W}
            ends = ends_of(schedule, lanes, lambda here, costs=costs, pair=pair: (
                pair if len(here) > 1 else costs[here[0][0]]), lambda a, b: 0)
            idle = [max(ends.values()) - sum(pair if len(group) > 1 else costs[group[0].kind] for group in lane)
                    for lane in lanes]
            table_2 = (p - 1) * (pair + (I + W) - 3 * W)  # DeepSeek-AI 2024, with 2p stages on p ranks and F <= I
            assert max(idle) == idle[-1] == table_2
    assert simulate(dualpipe_v(4, 8)).idle == (3, 3, 3, 3), "one after the other halves it: F is through before B"


@pytest.mark.parametrize("p, m", SHAPES)
def test_the_peak_in_flight_is_the_papers(p, m):
    def of_ranks(peak, *arguments):
        return tuple(peak(p, m, *arguments, r) for r in range(p))

    peaks = {name: simulate(make(p, m)).peak_in_flight for name, make in SCHEDULES.items()}
    assert peaks["naive"] == (1,) * p and peaks["GPipe"] == of_ranks(scaling.peak_gpipe) == (m,) * p
    assert peaks["1F1B"] == of_ranks(scaling.peak_1f1b)
    for v in (2, 3) if m % p == 0 else ():
        peak = simulate(interleaved_1f1b(p, m, v)).peak_in_flight
        assert peak == of_ranks(scaling.peak_interleaved, v)
        if m >= 2 * p:
            assert Fraction(peak[0], v) == p * (1 + Fraction(p - 1, p * v))  # Korthikanti et al. 2022
    assert max(peaks["ZB-H1"]) == min(p, m) and max(peaks["ZB-H2"]) == min(2 * p - 1, m)
    if m >= 2 * p:
        assert peaks["ZB-H1"] == simulate(zb_v(p, m)).peak_activations == (p,) * p
        assert peaks["DualPipe-V"] == (2 * p + 1,) * p


@pytest.mark.parametrize("order, peak", [("F0 I0 W0 F1 I1 W1", 1), ("F0 I0 F1 I1 W0 W1", 2)])
def test_weight_gradients_that_wait_hold_activations(order, peak):
    actions = tuple(Action(each[0], int(each[1])) for each in order.split())
    assert simulate(Schedule("one rank", 2, ((0,),), (actions,))).peak_in_flight == (peak,)


# What is refused, and what is told

@pytest.mark.parametrize("wrong, said", [
    ({"forward": -1}, "forward=-1: expected a finite number"), ({"p2p": float("inf")}, "p2p=inf"),
    ({"backward_input": [1, 2, 3]}, "backward_input has 3 costs: expected one, or one for each of 2 stages"),
    ({"backward_weight": [1, "2"]}, r"backward_weight\[1\]='2'"), ({"p2p": True}, "p2p=True"),
    ({"forward": lambda stage, microbatch: float("nan")}, r"forward\(0, 0\)=nan"),
    ({"schedule": Schedule("half", 1, ((0,),), ((Action("F", 0),),))}, "rank 0: B0 is missing")])
def test_costs_and_schedules_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        simulate(**{"schedule": gpipe(2, 2)} | wrong)


def test_the_sentence_has_both_conventions_and_the_memory_and_numbers_of_numpy_are_exact_too(snapshot):
    assert repr(simulate(one_f_one_b(4, 8))) == snapshot
    assert simulate(gpipe(2, 4), *np.array([1, 1, 1])).bubble_fraction == scaling.bubble_of_total(2, 4)


@pytest.mark.parametrize("table", BUBBLE_RATES[:2], ids=lambda table: table.model)
def test_published_bubble_rates_follow_from_costs_fitted_on_the_smallest_m(table):
    """1.5B and 6.2B; 28.3B, on 32 ranks, takes seconds: the notebook shows it."""
    costs = fit_costs(table)
    assert 0.5 < costs.backward_weight < 0.7 and 0 < costs.p2p < 0.05
    predicted = predict_rates(table, costs)
    assert len(predicted) == 3 * 4
    assert all(abs(rate - table.rates[m][name].value) < 0.0075 for (m, name), rate in predicted.items())
