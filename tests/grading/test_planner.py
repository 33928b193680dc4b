"""The exercises of chapter 10 say what the course's closed forms and simulations say, and tell mistakes apart."""

import inspect
import math
from itertools import product

import pytest

from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.costs.bubbles import bubble_of_total, peak_1f1b
from course_lib.costs.memory import training_memory
from course_lib.facts import Shape, accelerator
from course_lib.grading.chapters.planner import better, cap
from course_lib.grading.chapters.planner.better import AXES, BetterLayout
from course_lib.grading.chapters.planner.bubble import BubbleShare
from course_lib.grading.chapters.planner.by_date import (
    MOST_PARTS,
    OFFERS,
    CheapestRun,
    cheapest,
    edge,
    every_plan,
    fault_of,
    fitting,
    reason,
    run_of,
)
from course_lib.grading.chapters.planner.cap import LayoutUnderCap
from course_lib.grading.chapters.planner.memory import STATE, LayoutMemory, held_by, layout
from course_lib.grading.chapters.planner.scaling import MostDevices
from course_lib.grading.exercise import Traffic
from course_lib.pipeline_parallel import interleaved_1f1b, one_f_one_b, simulate
from tests.grading.telling_apart import told_and_apart


@pytest.mark.parametrize("asked", [LayoutMemory(), BubbleShare(), MostDevices()], ids=lambda each: each.number)
def test_every_mistake_differs_from_the_answer_and_from_all_others_in_some_trial(asked):
    told, apart = told_and_apart(asked)
    assert told == apart


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_state_of_a_rank_is_that_of_the_closed_form(zero):
    l, h, V = 24, 512, 1000
    for stage in range(4):
        held = held_by(l, h, V, 128, 64, layout(8, 2, 4, zero=zero), stage)
        numbers = (l // 4 * 12 * h**2 + (stage in (0, 3)) * V * h) / 2
        closed = training_memory(numbers, "mixed, fp32 gradients", zero, 8).by_kind()
        assert all(math.isclose(held[kind], closed[kind]) for kind in STATE)


@pytest.mark.parametrize("batch_rows", [8, 64])
def test_activations_are_those_of_megatrons_layer_times_what_1f1b_has_under_way(batch_rows):
    shape = Shape(num_layers=24, hidden_size=512, num_heads=8, num_kv_heads=8, ffn_size=2048, vocab_size=1000,
                  sequence_length=128, gated=False, tied=False)
    for stage in range(4):
        held = held_by(24, 512, 1000, 128, batch_rows, layout(2, 2, 4, rows=2), stage)
        layer = activation_bytes_per_layer(shape, 2, recompute="selective", dropout=True, tensor_parallel=2,
                                           sequence_parallel=True)
        assert held["activations"] == 6 * layer * peak_1f1b(4, batch_rows // 4, stage)


def test_recomputing_holds_less_where_a_stage_has_several_layers():
    for stage in range(4):
        kept, recomputed = (held_by(24, 512, 1000, 128, 64, layout(2, 2, 4, recompute=again), stage)
                            for again in (0, 1))
        assert recomputed["activations"] < kept["activations"]
        assert {**recomputed, "activations": 0} == {**kept, "activations": 0}


@pytest.mark.parametrize("p, m, v, head", [(4, 8, 1, 2), (4, 8, 2, 2), (4, 16, 3, 3), (3, 9, 2, 0), (1, 4, 1, 2)])
def test_the_idle_share_is_that_of_a_simulation_read_out_included(p, m, v, head):
    layers = 4 * p * v

    def cost(stage, micro_batch):
        return 4 + (head if stage == p * v - 1 else 0)

    schedule = interleaved_1f1b(p, m, v) if v > 1 else one_f_one_b(p, m)
    right = BubbleShare().expected(2 * 4 * p, 4, p, v, 2 * 3 * m, 3, layers, head)
    assert math.isclose(right, simulate(schedule, cost, cost, cost).bubble_fraction, abs_tol=1e-12)
    assert head or math.isclose(right, bubble_of_total(p, m, v))


def test_the_devices_that_a_batch_feeds_are_those_at_which_the_idle_share_says_so():
    for factor in (2, 4):
        idle = [BubbleShare().expected(256 * scale, 4, 8, 2, 1024, 4, 64, 0) for scale in (1, factor)]
        wanted = 0.5 * (1 - idle[1]) / (1 - idle[0])
        assert math.isclose(MostDevices().expected(256, 0.5, 4, 8, 2, 1024, 4, wanted), 256 * factor)


def test_llama_3s_published_utilisation_on_twice_the_devices_is_met_to_a_per_cent():
    assert MostDevices().expected(8192, 0.43, 8, 16, 8, 2048, 1, 0.41 + 0.005) < 16_384
    assert MostDevices().expected(8192, 0.43, 8, 16, 8, 2048, 1, 0.41 - 0.005) > 16_384


@pytest.mark.parametrize("seed", range(12))
def test_a_layout_fits_under_every_cap_that_is_asked_about(seed):
    for trial in LayoutUnderCap().trials(seed):
        asked = trial.inputs[0]
        best = cap.best(*asked)
        assert LayoutUnderCap().wrong(trial, [list(best)]) is None
        spent = LayoutUnderCap().spent(trial, [list(best)], Traffic([[0]], True))
        assert all(each.complaint is None for each in spent)


def test_the_caps_ask_for_some_and_for_no_recomputing_and_for_more_and_less_of_tp_and_stages():
    best = [cap.best(*trial.inputs[0]) for trial in LayoutUnderCap().trials(0)]
    assert {k > 0 for *_, k in best} == {p > 1 for _, p, _ in best} == {False, True}
    assert len({t for t, *_ in best}) > 2


@pytest.mark.parametrize("asked, module", [(LayoutUnderCap(), cap), (BetterLayout(), better)], ids=["10.3", "10.4"])
def test_every_mistake_chooses_a_layout_that_is_refused_in_some_trial(asked, module):
    refused, all_of_them = set(), set()
    for trial in asked.trials(seed=0):
        for cause, chosen in asked.mistakes(*trial.inputs[0]):
            all_of_them.add(cause)
            if asked.wrong(trial, [chosen]) or any(
                    each.complaint for each in asked.spent(trial, [chosen], Traffic([[0]], True))):
                refused.add(cause)
    assert refused == all_of_them


@pytest.mark.parametrize("seed", range(12))
def test_the_run_that_is_to_be_beaten_fits_and_is_beaten(seed):
    for trial in BetterLayout().trials(seed):
        asked = trial.inputs[0]
        run, best = dict(zip(AXES, asked[0])), better.best(*asked)
        assert better.fault_of(run, *asked) is None and better.held(run, *asked) <= asked[8]
        assert better.total(best, *asked) <= better.total(run, *asked) and run["tp"] > 1 < run["dp"]


def test_seconds_of_tp_and_dp_follow_what_a_rank_sends():
    asked = BetterLayout().trials(0)[0].inputs[0]
    batch_rows, per_node, layers = asked[1], asked[2], asked[4]
    for its in better.every_layout(*asked):
        dp, tp, pp = (its[axis] for axis in AXES)
        seconds = better.seconds_of(its, *asked)
        if 1 < tp <= per_node:
            sent = batch_rows / dp * layers / pp * (tp - 1) / tp
            assert math.isclose(seconds["tp"] / sent, asked[-2] * math.prod(asked[0]) / batch_rows / layers)
        if dp > 1:
            sent = (dp - 1) / dp / (tp * pp)
            assert math.isclose(seconds["dp"] / sent, asked[-1] * math.prod(asked[0]))


def test_the_cheapest_run_is_the_least_of_all_pairs_of_plans():
    asked = [{name: {**offer, "nodes": 4} for name, offer in OFFERS.items()}, 7e9, 32, 4096, 4096, 384, 1.4e11, 12]
    points = [each[:2] for each in fitting(asked)]
    early, late = ([each for each in points if (each[0] <= 12) == in_time] for in_time in (True, False))
    pairs = [a[1] + (b[1] - a[1]) * (12 - a[0]) / (b[0] - a[0]) for a, b in product(early, late)]
    assert math.isclose(cheapest(asked), min(min(pairs), min(each[1] for each in early)))


def test_in_most_cases_no_plan_alone_is_cheap_enough_and_memory_and_dates_matter():
    moves, shut_out = 0, 0
    for trial in CheapestRun().trials(0):
        asked = trial.inputs[0]
        points, plans = fitting(asked), list(every_plan(*asked))
        assert all(fault_of(plan, *asked) is None for plan in plans[::97])
        moves += min(each[1] for each in points if each[0] <= asked[-1]) > 1.01 * cheapest(asked)
        shut_out += len(points) < 0.7 * len(plans)
        assert len(edge(points)) > 3
    assert moves >= 4 and shut_out >= 2


@pytest.mark.parametrize("seed", range(6))
def test_every_date_that_is_drawn_can_be_kept(seed):
    assert cheapest(CheapestRun().trials(seed)[-1].inputs[0]) > 0


def test_every_plan_that_costs_too_much_is_told_why():
    asked = CheapestRun().trials(0)[1].inputs[0]
    points = [each for each in fitting(asked) if each[0] <= asked[-1]]
    assert all(reason([[plan, 1.0]], dollars, asked) for _, dollars, plan in points[::97])


def test_the_offers_are_devices_of_the_facts_and_what_a_run_costs_fits_on_a_screen():
    for name, offer in OFFERS.items():
        device = accelerator(name.removesuffix(" spot"))
        assert offer["memory"] == device.memory_bytes and offer["flops_per_s"] < 0.7 * device.peak_flops_per_s()
    assert len(inspect.getsource(run_of).splitlines()) <= 25 and MOST_PARTS > 2
