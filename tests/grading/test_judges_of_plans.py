"""What the judges of chapters 4, 9 and 10 hold right is what simulations, the library and published rows say.

That the solutions reach par and pass at every seed, test_every_exercise.py says; that trials tell apart what a text
stresses, the answers' tables.
"""

import math
from itertools import combinations, product

import pytest
import torch

from course_lib.costs.flops import activation_bytes_per_layer
from course_lib.costs.links import Link, collective_time
from course_lib.costs.scaling import peak_1f1b
from course_lib.facts import Shape, accelerator, model
from course_lib.grading.chapters import load
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.gradients import ROUNDING
from course_lib.grading.registry import exercise
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.pipeline_parallel import one_f_one_b, simulate
from course_lib.pipeline_parallel.stages import balanced_cuts
from course_lib.planner.candidates import with_zero
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import estimate, estimate_job

plans, layouts, gradients = load(4, "judge_plans"), load(9, "judge_layouts"), load(9, "judge_gradients")
fastest, reading, runs, terms = (load(10, f"judge_{name}") for name in ("plans", "reading", "runs", "terms"))
NOTHING = SentBytes([[0]], exact=True)
SEEDS = pytest.mark.parametrize("seed", range(3))


def drawn(number, seed=0):
    """The inputs of an exercise's trials but for the docstring's example."""
    return [trial.inputs[0] for trial in exercise(number).trials(seed)[1:]]


# ---- chapters 2 and 4

@pytest.mark.parametrize("alpha, beta, n", [(1e-5, 1e-10, 4), (3.4e-6, 2.2e-12, 8), (1e-4, 1e-9, 1024),
                                            (9.6e-6, 2e-11, 2)])
def test_a_choice_of_algorithm_loses_what_it_loses_at_its_worst_size_and_nothing_at_the_crossover(alpha, beta, n):
    def times(M):
        return [collective_time("all_reduce", name, M, n, Link(alpha, beta)) for name in ("recursive_doubling", "ring")]

    # log2 n (alpha + beta M) = 2(n-1) (alpha + beta M/n), solved for M
    more_alphas, more_betas = 2 * (n - 1) - math.log2(n), math.log2(n) - 2 * (n - 1) / n
    crossover = alpha * more_alphas / (beta * more_betas) if more_betas else math.inf
    sizes = [2 ** (k / 8) for k in range(8 * 40 + 1)]  # 1 byte to 1 TiB
    assert all((times(M)[1] < times(M)[0]) == (M > crossover) for M in sizes)
    for factor in (0.01, 0.5, 0.99, 1, 1.02, 3, 1000, math.inf):
        chosen = factor * min(crossover, alpha / beta)
        near = [chosen * by for by in (1 - 1e-9, 1 + 1e-9) if math.isfinite(chosen)]
        lost = max(times(M)[M >= chosen] / min(times(M)) - 1 for M in (*sizes, *near))
        assert load(2, "judge").lost_share((alpha, beta, n), chosen) == pytest.approx(lost, abs=1e-6)
    assert load(2, "judge").lost_share((alpha, beta, n), crossover) == pytest.approx(0, abs=1e-9)


def test_no_cut_is_better_than_the_librarys_which_is_par_and_what_comes_into_a_stage_the_one_before_gives():
    for costs, stages in plans.Partition.cases:
        every = [[0, *cuts] for cuts in combinations(range(1, len(costs)), stages - 1)]
        assert plans.slowest(costs, balanced_cuts(costs, stages)) == min(plans.slowest(costs, cut) for cut in every)
    for trial in exercise("4.5").trials(seed=1):
        for before, after in zip(trial.inputs, trial.inputs[1:]):
            for x, y in zip(before["xs"], after["xs"]):
                assert alike(torch.tanh(x @ before["weight"].T + before["bias"]), y, ROUNDING)


@pytest.mark.parametrize("p, m", [(1, 4), (4, 8), (8, 4)])
def test_a_layout_is_judged_by_what_1f1b_holds_and_takes(p, m):
    N, S, M, A, C, k = asked = 8, 64, 100, 3, 80, 2
    b = S * p / N / m  # sequences of a micro-batch
    assert plans.held_gb(p, m, *asked) == (M + peak_1f1b(p, m, 0) * b * A) / p
    assert plans.step(p, m, *asked) == simulate(one_f_one_b(p, m)).makespan / 3 * (b + k) / p


# ---- chapter 9

CLUSTER = {"small": 0.05, "hidden": 0.4}  # what only looks show
LAYOUTS = ["dp2 tp2", "pp2 cp2", "dp2 cp2 ep2", "dp2 cp2 tp2 pp2 ep4", "dp2 tp4 ep2", "pp3 tp2"]


@pytest.mark.parametrize("order", layouts.ORDERS)
def test_a_moved_rank_has_the_coordinates_that_it_had(order):
    sizes = layouts.sizes_of("dp4 pp2 cp2 tp3")
    layout, default = ParallelLayout(**sizes, order=order), ParallelLayout(**sizes)
    moved = [exercise("9.1").solve(rank, sizes, order, layouts.ORDERS[0]) for rank in range(layout.world_size)]
    assert sorted(moved) == list(range(layout.world_size))
    assert all(default.coordinates(int(new)) == layout.coordinates(old) for old, new in enumerate(moved))


def test_two_levels_join_the_ranks_of_the_whole_group_and_keep_nodes_apart():
    asked = exercise("9.2")
    for trial in asked.trials(seed=1):
        axes, sizes, order, node = trial.inputs[0]
        (inside, across), = asked.solve(trial.inputs)
        for group in ParallelLayout(**sizes, order=order).groups(*axes):
            parts = [part for part in inside if set(part) <= set(group)]
            lines = [line for line in across if set(line) <= set(group)]
            assert sorted(sum(parts, [])) == sorted(sum(lines, [])) == group
            assert [len({rank // node for rank in part}) for part in parts] == [1] * len(parts)
            assert all([rank in part for rank in line].count(True) == 1 for line in lines for part in parts)


@pytest.mark.parametrize("text", LAYOUTS)
def test_gradients_added_up_by_the_table_are_those_of_one_process_and_their_norm_is_torchs(text):
    layout = ParallelLayout.from_string(text)
    dealt = torch.arange(7 * layout.dp * layout.cp).split([4, 10] * (layout.dp * layout.cp // 2) or [7])
    num_tokens = sum(map(len, dealt))
    each = gradients.random_gradients(torch.Generator().manual_seed(0), layout, 4, num_tokens)
    ranks = gradients.after_backward(layout, each, dealt)
    whole = {name: gradient.sum(0) / num_tokens for name, gradient in each.items()}
    whole["embedding"] *= 1 + gradients.HEAD
    for own, right in zip(exercise("9.3").solve(ranks), gradients.after_reduction(layout, whole, zero=False)):
        assert alike(own, right["gradients"], (1e-9, 1e-12))
    assert {name for rank in ranks for name in rank["kinds"]} == gradients.MODEL.keys()
    for zero, norm_type in product((False, True), (1.0, 2.0, math.inf)):
        right = torch.nn.utils.get_total_norm(whole.values(), norm_type).item()
        given = exercise("9.4").solve([{**rank, "norm_type": norm_type, "zero": zero}
                                       for rank in gradients.after_reduction(layout, whole, zero)])
        assert alike(given, [right] * len(ranks), (1e-9, 0.0))


def test_at_youngs_interval_the_least_time_is_lost():
    asked = exercise("9.6")
    for _, (N, hours, parameters, copy, storage, asynchronous) in asked.cases:
        between, write = 3600 * hours / N, 12 * parameters / storage
        pause = 12 * parameters / N / copy if asynchronous else write

        def loss_share(tau, pause=pause, between=between, write=write, asynchronous=asynchronous):
            return math.inf if asynchronous and tau < write * 0.999 else pause / tau + (tau / 2 + write) / between

        best = asked.solve(N, hours, parameters, copy, storage, asynchronous)
        assert all(loss_share(best) <= loss_share(best * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def test_every_layout_is_looked_at_where_devices_and_rows_are_powers_of_two():
    devices, layers, batch_rows = 16, 32, 128
    asked = (devices, 1, 24e9, 60e12, 16e9, 1.25e9, 7e9, layers, 4096, 2048, batch_rows)
    expected = [each for each in product(*[[1 << n for n in range(8)]] * 4) if math.prod(each[:3]) == devices
                and each[1] <= layers and batch_rows % (each[0] * each[3]) == 0]
    found = [tuple(layout.values()) for layout in layouts.every_layout(*asked)]
    assert sorted({each[:4] for each in found}) == sorted(expected) and len(found) == 6 * len(expected)
    assert all(number & (number - 1) == 0 for its in drawn("9.7") for number in (its[0], its[10]))


@pytest.mark.parametrize("dp, tp, pp, gb_per_s", [(16, 1, 1, 400), (8, 2, 1, 200), (4, 4, 1, 100), (2, 8, 1, 50),
                                                  (2, 2, 4, 450)])
def test_gradients_have_a_card_for_each_rank_of_their_ring_in_a_node(dp, tp, pp, gb_per_s):
    """On 16 devices: the two ranks of dp lie in one node under tp2 pp4."""
    ring_s = 2 * 2 * 1e9 / (tp * pp) * (dp - 1) / dp / (gb_per_s * 1e9)
    if pp == 1:
        its, asked = dict(zip(layouts.KEYS, (dp, 1, tp, 1, 0, 0))), (16, 8, 80e9, *layouts.H100, 1e9, 16, 2048, 1024,
                                                                     16)
        shown, hidden = (layouts.step_of(its, {"small": 0.0, "hidden": share}, *asked)[0] for share in (0.0, 1.0))
        assert shown - hidden == pytest.approx(ring_s)

    def days(parameters):
        plan = {"offer": "H100", "nodes": 2, "tp": tp, "pp": pp, "recompute": 0}
        shape = parameters, 16, 1024, 1024, 16, 16 * 1024  # layers, hidden, tokens, rows of a batch, all tokens
        return runs.run_of(plan, {"small": 0.0, "restart": 0.0}, runs.OFFERS["H100"], *shape)[0]

    computing = 6 * 1e9 / (tp * pp) * 1024 / 500e12 * (16 // dp + pp - 1)
    assert (days(2e9) - days(1e9)) * 86_400 - computing == pytest.approx(ring_s)  # of activations nothing is left


# ---- chapter 10: memory, layouts, runs

def held_by(l, h, V, s, B, stage, dp, tp, pp, rows=1, zero=1, recompute=0):
    layout = dict(zip(fastest.CUTS, (dp, tp, pp, rows, zero, recompute)))
    return exercise("10.1").solve([[l, h, V, s, B, layout, stage]])[0]


@pytest.mark.parametrize("stage", range(4))
def test_the_bytes_of_a_rank_are_2_4_and_12_cut_as_zero_says_and_megatrons_layers_of_what_1f1b_has_under_way(stage):
    l, h, V = 24, 512, 1000
    for zero in range(4):
        held = held_by(l, h, V, 128, 64, stage, 8, 2, 4, zero=zero)
        numbers = (l // 4 * 12 * h**2 + (stage in (0, 3)) * V * h) / 2
        for kind, size, first in (("parameters", 2, 3), ("gradients", 4, 2), ("optimizer_state", 12, 1)):
            assert math.isclose(held[kind], size * numbers / (8 if zero >= first else 1))
    shape = Shape(num_layers=l, hidden_size=h, num_heads=8, num_kv_heads=8, ffn_size=4 * h, vocab_size=V,
                  sequence_length=128, gated=False, tied=False)
    layer = activation_bytes_per_layer(shape, 2, recompute="selective", dropout=True, tensor_parallel=2,
                                       sequence_parallel=True)
    for rows in (8, 64):
        under_way = simulate(one_f_one_b(4, rows // 4)).peak_in_flight[stage]
        assert held_by(l, h, V, 128, rows, stage, 2, 2, 4, rows=2)["activations"] == 6 * layer * under_way
    kept, recomputed = (held_by(l, h, V, 128, 64, stage, 2, 2, 4, recompute=again) for again in (0, 1))
    assert recomputed["activations"] < kept["activations"]
    assert {**recomputed, "activations": 0} == {**kept, "activations": 0}


@SEEDS
def test_under_every_cap_a_layout_fits_and_no_rounding_decides_which(seed):
    for asked in drawn("10.3", seed):
        costs, cap = fastest.costs_of(*asked), asked[7]
        least = min(step for held, step in costs.values() if held <= cap)
        assert not any(math.isclose(held, cap, rel_tol=1e-6) and step < 1.001 * least for held, step in costs.values())


@SEEDS
def test_the_run_that_is_to_be_beaten_fits_and_is_beaten(seed):
    for trial in exercise("10.4").trials(seed):
        run, seconds, batch_rows, per_node, slower, fit = trial.inputs[0]
        assert run in fit and run["tp"] > 1 < run["dp"]
        assert seconds["bubble"] == (seconds["matmul"] + seconds["tp"]) * (run["pp"] - 1) * run["dp"] / batch_rows
        steps = [sum(fastest.seconds_of(its, run, seconds, batch_rows, per_node, slower).values()) for its in fit]
        assert min(steps) <= sum(seconds.values())


def test_seconds_of_tp_and_dp_follow_what_a_rank_sends():
    run, seconds, batch_rows, per_node, slower, fit = exercise("10.4").trials(0)[2].inputs[0]

    def sent_per_rank(its):
        dp, tp, pp = (its[axis] for axis in fastest.AXES)
        return batch_rows / dp * 60 / pp * (tp - 1) / tp, (dp - 1) / dp / (tp * pp)  # of 60 layers

    def wire(cause, its):
        """How much longer than inside a node, of two devices: one of tp's ranks, or all, in each."""
        if (its["tp"] if cause == "tp" else its["dp"] * its["tp"]) <= per_node == 2:
            return 1
        return slower if cause == "tp" or its["tp"] == 1 else 2 * slower

    for its in fit:
        took = fastest.seconds_of(its, run, seconds, batch_rows, per_node, slower)
        for cause, here, there in zip(("tp", "dp"), sent_per_rank(its), sent_per_rank(run)):
            assert math.isclose(took[cause], seconds[cause] * wire(cause, its) * here / wire(cause, run) / there)


def points_of(asked):
    """(days, dollars, plan) of the plans that fit, the fastest first."""
    every = runs.costs_of_plans({"small": 0.05, "restart": 0.5}, *asked)
    return sorted((days, dollars, plan) for plan, (days, dollars, held) in every.items()
                  if held <= asked[0][plan[0]]["memory"])


def test_the_cheapest_run_is_the_least_of_all_pairs_of_plans():
    offers = {name: {**offer, "nodes": 4} for name, offer in runs.OFFERS.items()}
    points = points_of([offers, 7e9, 32, 4096, 4096, 384, 1.4e11, 12])
    early, late = ([each for each in points if (each[0] <= 12) == in_time] for in_time in (True, False))
    pairs = [a[1] + (b[1] - a[1]) * (12 - a[0]) / (b[0] - a[0]) for a, b in product(early, late)]
    assert math.isclose(runs.cheapest(points, 12), min(min(pairs), min(each[1] for each in early)))


def test_the_offers_are_devices_of_the_facts():
    for name, offer in runs.OFFERS.items():
        device = accelerator(name.removesuffix(" spot").removesuffix(" 40 GB"))
        assert offer["memory"] in (device.memory_bytes, 40e9) and offer["flops_per_s"] < 0.7 * device.peak_flops_per_s()


# ---- chapter 10: the planner's errors

@SEEDS
def test_what_is_said_of_a_plan_is_said_of_numbers_a_per_mille_off_too(seed):
    solve = exercise("10.2").solve
    for shown, limit, found in drawn("10.2", seed):
        for off, place in product((0.999, 1.001), range(len(shown))):
            moved = [plan | {"memory": {kind: size * off for kind, size in plan["memory"].items()}} if at == place
                     else plan for at, plan in enumerate(shown)]
            assert solve(moved, limit, found) == solve(shown, limit, found)


def test_zero_divides_in_the_exercise_what_it_divides_in_the_planner():
    layout = ParallelLayout(dp=32, tp=8, pp=1, zero_stage=1)
    found = estimate(model("Llama 3 70B"), cluster("H100", 256), layout, 512)
    second = sum(estimate_job(with_zero(found.job, 2)).memory.values()) / reading.GIB
    assert reading.held_by(reading.shown_plan(found), 2) == pytest.approx(second, rel=0.01)


@SEEDS
def test_the_wrong_term_leaves_clearly_less_error_than_any_other(seed):
    published = {run.measured for run in terms.dense_runs()}
    for trial in exercise("10.7").trials(seed)[1:]:
        planned, measured = trial.inputs[0]
        left = {(cause, factor): terms.error_left(planned, measured, cause, factor)
                for cause, factor in product(terms.CAUSES, terms.FACTORS)}
        least, second = sorted(left.values())[:2]
        assert left[tuple(trial.hidden)] == least and second > 1.5 * least and set(measured) <= published


@SEEDS
def test_unseen_runs_come_without_their_steps_and_a_par_that_mistaken_terms_miss(seed):
    for trial in exercise("10.8").trials(seed)[1:]:
        (fitted, unseen), hidden = trial.inputs[0], trial.hidden
        _, mistakes = terms.errors_of(fitted, [run | {"measured": step}
                                                 for run, step in zip(unseen, hidden["measured"])])
        assert hidden["par"] < min(mistakes) and hidden["par"] < hidden["before"]
        assert not any("measured" in run for run in unseen)
        assert not {run["measured"] for run in fitted} & set(hidden["measured"])
