"""The exercises of chapter 10 say what closed forms and simulations say, and refuse odd answers in words."""

import math
from itertools import product

import pytest

from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.facts import Shape, accelerator
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.planner.memory import CUTS, LayoutMemory
from course_lib.grading.judges.planner.plans import AXES, BetterLayout, LayoutUnderCap, costs_of, seconds_of
from course_lib.grading.judges.planner.runs import (
    KEYS,
    OFFERS,
    CheapestRun,
    cheapest,
    costs_of_plans,
    plan_fault,
    reason,
    run_of,
)
from course_lib.pipeline_parallel import one_f_one_b, simulate
from tools.solutions import SOLUTIONS, names_of

CLUSTER = {"small": 0.05, "restart": 0.5}  # what only looks show
NOTHING = SentBytes([[0]], exact=True)
PLANS = pytest.mark.parametrize("asked", [LayoutUnderCap(), BetterLayout(), CheapestRun()], ids=lambda it: it.number)


def held_by(l, h, V, s, B, stage, dp, tp, pp, rows=1, zero=1, recompute=0):
    layout = dict(zip(CUTS, (dp, tp, pp, rows, zero, recompute)))
    return LayoutMemory().solve([[l, h, V, s, B, layout, stage]])[0]


def points_of(asked):
    """(days, dollars, plan) of the plans that fit, the fastest first."""
    return sorted((days, dollars, plan) for plan, (days, dollars, held) in costs_of_plans(CLUSTER, *asked).items()
                  if held <= asked[0][plan[0]]["memory"])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_state_of_a_rank_is_2_4_and_12_bytes_a_number_cut_as_zero_says(zero):
    l, h, V = 24, 512, 1000
    for stage in range(4):
        held = held_by(l, h, V, 128, 64, stage, 8, 2, 4, zero=zero)
        numbers = (l // 4 * 12 * h**2 + (stage in (0, 3)) * V * h) / 2
        for kind, size, first in (("parameters", 2, 3), ("gradients", 4, 2), ("optimizer_state", 12, 1)):
            assert math.isclose(held[kind], size * numbers / (8 if zero >= first else 1))


@pytest.mark.parametrize("batch_rows", [8, 64])
def test_activations_are_those_of_megatrons_layer_times_what_1f1b_has_under_way(batch_rows):
    shape = Shape(num_layers=24, hidden_size=512, num_heads=8, num_kv_heads=8, ffn_size=2048, vocab_size=1000,
                  sequence_length=128, gated=False, tied=False)
    for stage in range(4):
        held = held_by(24, 512, 1000, 128, batch_rows, stage, 2, 2, 4, rows=2)
        layer = activation_bytes_per_layer(shape, 2, recompute="selective", dropout=True, tensor_parallel=2,
                                           sequence_parallel=True)
        under_way = simulate(one_f_one_b(4, batch_rows // 4)).peak_in_flight[stage]
        assert held["activations"] == 6 * layer * under_way


def test_recomputing_holds_less_where_a_stage_has_several_layers():
    for stage in range(4):
        kept, recomputed = (held_by(24, 512, 1000, 128, 64, stage, 2, 2, 4, recompute=again)
                            for again in (0, 1))
        assert recomputed["activations"] < kept["activations"]
        assert {**recomputed, "activations": 0} == {**kept, "activations": 0}


@PLANS
@pytest.mark.parametrize("seed", range(4))
def test_the_solution_is_the_best_plan_of_every_trial(asked, seed):
    for trial in asked.trials(seed):
        ask = [lambda question, trial=trial: asked.reply(trial, question)] if asked.asks else []
        function = names_of(SOLUTIONS[10])[asked.function]
        judged = asked.judge(trial, [asked.run(function, trial.inputs[0], *ask)], NOTHING)
        assert judged.cause is None
        least = judged.usage[-1].allowed / (1 if asked.number == "10.3" else 1.01)
        assert judged.usage[-1].measured == pytest.approx(least, rel=1e-4)


@PLANS
@pytest.mark.parametrize("odd", [None, "a Tensor", [], {}, 3, [None] * 3, [1, 2], {"dp": "1", "tp": 1, "pp": 1},
                                 [[{}, 1.0]], [["A100", 1.0]], [0, 0, 0], {"dp": -1, "tp": -1, "pp": 1}])
def test_odd_answers_are_refused_in_words(asked, odd):
    assert asked.judge(asked.trials(seed=0)[0], [odd], NOTHING).cause


@pytest.mark.parametrize("odd", [None, "a list", {}, {"parameters": 1.0}, dict.fromkeys(
    ("parameters", "gradients", "optimizer_state", "activations", "logits"), "a Tensor")])
def test_odd_bytes_are_refused_in_words(odd):
    judged = LayoutMemory().judge(LayoutMemory().trials(seed=0)[0], [odd], NOTHING)
    assert "expected" in judged.cause and not judged.right


@pytest.mark.parametrize("seed", range(12))
def test_a_layout_fits_under_every_cap_that_is_asked_about(seed):
    for trial in LayoutUnderCap().trials(seed):
        assert min(held for held, _ in costs_of(*trial.inputs[0]).values()) <= trial.inputs[0][7]


@pytest.mark.parametrize("seed", range(12))
def test_no_rounding_decides_which_layout_fits_but_in_the_examples_whole_numbers(seed):
    for trial in LayoutUnderCap().trials(seed)[1:]:
        costs, cap = costs_of(*trial.inputs[0]), trial.inputs[0][7]
        least = min(step for held, step in costs.values() if held <= cap)
        assert not any(math.isclose(held, cap, rel_tol=1e-6) and step < 1.001 * least for held, step in costs.values())


def best_under_cap(asked):
    return min((step, layout) for layout, (held, step) in costs_of(*asked).items() if held <= asked[7])[1]


def test_the_caps_ask_for_some_and_for_no_recomputing_and_for_more_and_less_of_tp_and_stages():
    best = [best_under_cap(trial.inputs[0]) for trial in LayoutUnderCap().trials(0)]
    assert {k > 0 for *_, k in best} == {p > 1 for _, p, _ in best} == {False, True}
    assert len({t for t, *_ in best}) > 2


def test_more_than_a_device_has_is_no_answer_and_a_slow_step_is_half_of_one():
    asked = LayoutUnderCap()
    trial = next(each for each in asked.trials(seed=0) if each.inputs[0][0] == 512)
    too_large, slow = (asked.judge(trial, [layout], NOTHING) for layout in ([1, 1, 0], [8, 8, 10]))
    assert too_large.over and slow.over and slow.right and not too_large.right


@pytest.mark.parametrize("seed", range(12))
def test_the_run_that_is_to_be_beaten_fits_and_is_beaten(seed):
    for trial in BetterLayout().trials(seed):
        run, seconds, batch_rows, per_node, slower, fit = trial.inputs[0]
        assert run in fit and run["tp"] > 1 < run["dp"]
        assert seconds["bubble"] == (seconds["matmul"] + seconds["tp"]) * (run["pp"] - 1) * run["dp"] / batch_rows
        steps = [sum(seconds_of(its, run, seconds, batch_rows, per_node, slower).values()) for its in fit]
        assert min(steps) <= sum(seconds.values())


def test_seconds_of_tp_and_dp_follow_what_a_rank_sends():
    run, seconds, batch_rows, per_node, slower, fit = BetterLayout().trials(0)[2].inputs[0]
    layers = 60

    def sent_per_rank(its):
        dp, tp, pp = (its[axis] for axis in AXES)
        return batch_rows / dp * layers / pp * (tp - 1) / tp, (dp - 1) / dp / (tp * pp)

    def wire(cause, its):
        """How much longer than inside a node, of two devices: one of tp's ranks, or all, in each."""
        if (its["tp"] if cause == "tp" else its["dp"] * its["tp"]) <= per_node == 2:
            return 1
        return slower if cause == "tp" or its["tp"] == 1 else 2 * slower

    for its in fit:
        took = seconds_of(its, run, seconds, batch_rows, per_node, slower)
        for cause, here, there in zip(("tp", "dp"), sent_per_rank(its), sent_per_rank(run)):
            assert math.isclose(took[cause], seconds[cause] * wire(cause, its) * here / wire(cause, run) / there)


@pytest.mark.parametrize("tp, pp, gb_per_s", [(1, 1, 400), (2, 1, 200), (4, 1, 100), (8, 1, 50), (2, 4, 450)])
def test_gradients_have_a_card_for_each_rank_of_their_ring_in_a_node(tp, pp, gb_per_s):
    """16 devices: the two ranks of dp lie in one node under tp2 pp4."""

    def days(parameters):
        plan = {"offer": "H100", "nodes": 2, "tp": tp, "pp": pp, "recompute": 0}
        model = parameters, 16, 1024, 1024, 16, 16 * 1024  # layers, hidden, tokens, rows of a batch, all tokens
        return run_of(plan, {"small": 0.0, "restart": 0.0}, OFFERS["H100"], *model)[0]

    dp = 16 // (tp * pp)
    shown = (days(2e9) - days(1e9)) * 86_400  # of activations nothing is left
    computing = 6 * 1e9 / (tp * pp) * 1024 / 500e12 * (16 // dp + pp - 1)
    assert shown - computing == pytest.approx(2 * 2 * 1e9 / (tp * pp) * (dp - 1) / dp / (gb_per_s * 1e9))


def test_the_cheapest_run_is_the_least_of_all_pairs_of_plans():
    asked = [{name: {**offer, "nodes": 4} for name, offer in OFFERS.items()}, 7e9, 32, 4096, 4096, 384, 1.4e11, 12]
    points = points_of(asked)
    early, late = ([each for each in points if (each[0] <= 12) == in_time] for in_time in (True, False))
    pairs = [a[1] + (b[1] - a[1]) * (12 - a[0]) / (b[0] - a[0]) for a, b in product(early, late)]
    assert math.isclose(cheapest(points, 12), min(min(pairs), min(each[1] for each in early)))


def test_in_most_cases_no_plan_alone_is_cheap_enough_and_memory_and_dates_matter():
    moves, shut_out = 0, 0
    for trial in CheapestRun().trials(0):
        asked = trial.inputs[0]
        points, plans = points_of(asked), costs_of_plans(CLUSTER, *asked)
        assert all(plan_fault(dict(zip(KEYS, plan)), *asked) is None for plan in list(plans)[::97])
        moves += min(each[1] for each in points if each[0] <= asked[-1]) > 1.01 * cheapest(points, asked[-1])
        shut_out += len(points) < 0.7 * len(plans)
    assert moves >= 4 and shut_out >= 2


@pytest.mark.parametrize("seed", range(6))
def test_every_date_that_is_drawn_can_be_kept(seed):
    asked = CheapestRun().trials(seed)[-1].inputs[0]
    assert cheapest(points_of(asked), asked[-1]) > 0


def test_every_plan_that_costs_too_much_is_told_why():
    asked = CheapestRun().trials(0)[1].inputs[0]
    points = points_of(asked)
    late_enough = [each for each in points if each[0] <= asked[-1]]
    assert all(reason([(days, dollars, 0.0, plan)], dollars, points, asked[-1])
               for days, dollars, plan in late_enough[::97])


def test_the_offers_are_devices_of_the_facts():
    for name, offer in OFFERS.items():
        device = accelerator(name.removesuffix(" spot").removesuffix(" 40 GB"))
        assert offer["memory"] in (device.memory_bytes, 40e9) and offer["flops_per_s"] < 0.7 * device.peak_flops_per_s()
