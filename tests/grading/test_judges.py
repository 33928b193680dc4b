"""What the judges hold right beyond their solutions' reach is what simulations, torch, a paper or published rows say.

That solutions and unusual right answers agree with a judge at every seed, and that trials tell apart what a text
stresses, test_answers.py and test_every_exercise.py say. Here: search spaces, drawn trials, what ranks only claim, and
what a judge weighs and times by.
"""

import math
import time
from itertools import product

import pytest
import torch
import torch.distributed as dist

from course_lib.costs import splitting as cp
from course_lib.costs.links import Link, collective_time
from course_lib.facts import accelerator
from course_lib.grading.chapters import load
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes, Trial
from course_lib.grading.kinds import sent_by
from course_lib.grading.registry import exercise
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.runtime import launch
from course_lib.sequence_parallel import layout_order

shards, attention, stage_3 = load(3, "judge_plans"), load(7, "on_rank"), load(6, "on_rank")
layouts, gradients = load(9, "judge_layouts"), load(9, "judge_gradients")
fastest, reading, runs, terms = (load(10, f"judge_{name}") for name in ("plans", "reading", "runs", "terms"))
SEEDS = pytest.mark.parametrize("seed", range(3))


def drawn(number, seed=0):
    """The inputs of an exercise's trials but for the docstring's example."""
    return [trial.inputs[0] for trial in exercise(number).trials(seed)[1:]]


# ---- chapter 2

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


# ---- chapter 3

def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    silent = [{"calls": []}, {"calls": [["all_reduce", 1 << 20, float(1 << 20)]]}]
    assert [sent_by(rank, silent, SentBytes([[0, 0], [0, 0]], exact=True)) for rank in range(2)] == [0, 1 << 20]
    outside = SentBytes([[0, 1 << 20], [(1 << 20) + 999, 0]], exact=False)
    assert [sent_by(rank, silent, outside) for rank in range(2)] == [1 << 20, 1 << 20]  # 999 bytes are headers
    assert sent_by(0, silent, SentBytes([[0, 4096], [0, 0]], exact=False)) == 0  # as a few thousand of small calls are
    assert sent_by(0, silent, outside, beforehand=1 << 20) == 0
    asked = exercise("6.2")  # whose ranks send more than they say
    trial = asked.trials(seed=6)[3]
    answers = [{"weights": own, "calls": [], "kind": "AdamW", "state": own.nbytes // 2, "of_all": 0, "held": []}
               for own in asked.solve(trial.inputs)]
    judged = asked.judge(trial, answers, SentBytes([[1 << 20] * 4] * 4, exact=False))
    assert judged.right and "rank 0 sent 4.2 MB, where 294.9 kB will do" in judged.cause
    assert judged.figures(believed=False).count("4.2 MB") == 1


def test_shards_are_refused_for_what_is_wrong_with_them_and_an_order_that_is_counted_through_is_not_shuffled():
    for parts, words in (([[0], [1]], "1 of 3 samples are on no rank"), ([[0, 1], [2, 0]], "1 come twice: the parts"),
                          ([[0, 1, 2], []], "differ by one at most"), ([[0, 3], [1]], "there are indices from 0 to 3")):
        assert words in next(shards.faults([parts], 3))
    assert list(shards.faults([[[0, 2, 4, 6], [1, 3, 5, 7]], [[7, 2, 4, 6], [1, 3, 5, 0]]], 8)) == []
    N = 2001
    for step in (1, 7, 1000):
        order = [step * index % N for index in range(1, N + 1)]
        epochs = [[order[:1000], order[1000:]], [order[9:1009], order[1009:] + order[:9]]]
        assert any("equally far apart" in fault for fault in shards.faults(epochs, N))
    for seed in range(50):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(seed)).tolist()
        assert all(shards.step_share(part, N) < 0.01 for part in (order[:1001], order[1::2]))  # where 0.05 is allowed


# ---- chapter 6

def test_weighing_waits_for_what_is_about_to_be_freed_and_not_for_ever():
    falling = iter([30, 20, 10, 0])
    assert stage_3.await_release(lambda: next(falling), 10) == 10 and stage_3.await_release(lambda: 30, 10) == 30


@pytest.mark.parametrize("write", [lambda weight: weight.copy_(torch.ones(3)), lambda weight: weight.data.mul_(2),
                                   lambda weight: torch.add(torch.ones(3), 1, out=weight)],
                         ids=["copied", "multiplied", "out"])
def test_a_write_past_the_end_of_a_storage_is_an_error_and_not_a_crash(write):
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)
    with stage_3.NothingPastItsStorage():
        for num_bytes in (0, 12):
            weight.untyped_storage().resize_(num_bytes)
            assert torch.empty_like(weight).detach().shape == (3,)  # nothing is written
            with pytest.raises(ValueError, match=f"a storage of {num_bytes} bytes is too small for 3 numbers of 8 by"):
                write(weight)
        weight.untyped_storage().resize_(weight.nbytes)
        write(weight)


def test_what_has_no_memory_or_is_no_tensor_is_told_in_words():
    piece = torch.arange(3.0)
    assert torch.equal(stage_3.piece_data(piece), piece)
    piece.untyped_storage().resize_(0)
    words = [stage_3.piece_data(each) for each in (piece, None, 3)]
    assert words == ["a tensor whose storage is empty", None, "an int"]
    kinds = {"nothing (None)": None, "a tensor": piece, "(a tensor, a function)": (piece, len)}
    assert all(load(8, "on_rank").kind_of(returned) == words for words, returned in kinds.items())


@pytest.mark.parametrize("held, words", [
    ([10, 10, 10], ""), ([99, 10, 10], "rank 1 holds 99 B of weights at first"),
    ([10, 12, 99], "rank 1 holds 12 B of weights in forward")])
def test_what_outlives_its_use_is_told_by_the_first_point_at_which_it_is_there(held, words):
    answers = [{"held": [list(look) for look in zip(("at first", "in forward", "in the end"), each)]}
               for each in ([10, 10, 10], held)]
    complaint = load(6, "judge_shards").memory_usage(answers, 10, "weights").complaint
    assert words in (complaint or "") and bool(complaint) == bool(words)


# ---- chapter 7

@pytest.mark.parametrize("layout", cp.LAYOUTS)
def test_what_is_uneven_about_one_document_is_the_chapters_imbalance(layout):
    for R in (1, 2, 3, 4):
        T = 24 * R
        seen = exercise("7.3").judge(Trial([[[T]]] * R, "one document"), [
            {"returned": own} for own in layout_order(T, R, layout).chunk(R)], SentBytes([[0] * R] * R, True))
        spent, = seen.usage
        assert math.isclose(spent.measured, cp.imbalance(cp.ring_work(T, R, layout)), abs_tol=1e-12)
        assert bool(seen.fault) == (spent.measured > 1e-9)


def test_a_block_that_nobody_sends_or_receives_while_the_one_before_is_used_is_named():
    asked = exercise("7.4")
    trial = next(trial for trial in asked.trials(seed=1) if trial.world_size == 3)
    both = [attention.SEND, attention.RECEIVE]

    def flaw(under_way):
        calls = [["send", 8, 8.0]] * 2
        return asked.flaw(trial, [{"under_way": under_way, "calls": calls}] * 3, SentBytes([[0] * 3] * 3, True))

    assert flaw([both, both, []]) is None
    assert flaw([both, both[1:], []]).startswith("rank 0 used block 1, counted from 0, and had not begun to send:")
    assert "block 0, counted from 0, and had not begun to send or to receive:" in flaw([[], both, []])


def calls_under_way():
    """What is open at six moments on one of two ranks."""
    other, block, seen = 1 - dist.get_rank(), torch.zeros(2), []
    with attention.open_calls() as calls:
        waiting = [dist.isend(block, other)]
        seen.append(calls.directions())
        waiting.append(dist.irecv(block.clone(), other))
        seen.append(calls.directions())
        waiting[0].wait()
        seen.append(calls.directions())
        waiting[1].wait()
        exchange = dist.all_to_all_single(block.clone(), block, async_op=True)
        time.sleep(0.05)  # it is over meanwhile, and nobody has waited
        seen.append(calls.directions())
        exchange.wait()
        dist.all_reduce(block)
        seen.append(calls.directions())
        (dist.send if other else dist.recv)(block, other)
        seen.append(calls.directions())
    return seen


def test_a_message_is_under_way_from_its_call_until_somebody_waits_for_it():
    send, both = [attention.SEND], [attention.SEND, attention.RECEIVE]
    for seen in launch(calls_under_way, world_size=2, device="cpu"):
        assert seen == [send, both, both[1:], both, [], []]


# ---- chapter 8

@pytest.mark.parametrize("number", ["8.3", "8.4", "8.7"])
def test_right_results_that_fewer_bytes_came_with_than_can_carry_them_are_refused(number):
    asked = exercise(number)
    trial = asked.trials(0)[1]
    least, nothing = asked.least(trial), [0] * (trial.world_size - 1)
    for sent, enough in ((least, True), (least - 1, False)):
        calls = [[["all_reduce", 0, float(each)]] for each in (sent, *nothing)]
        answers = [{**answer, "calls": own} for answer, own in zip(asked.solve(trial.inputs), calls)]
        fault = asked.flaw(trial, answers, SentBytes([[0] * trial.world_size] * trial.world_size, exact=True))
        assert (fault is None) == enough
    assert 0 < least <= asked.bound(trial) * trial.world_size


def test_of_an_expert_without_tokens_nothing_has_to_be_sent_and_what_one_rank_has_goes_to_all_who_hold_it():
    asked = exercise("8.7")
    trial = asked.trials(0)[1]  # 3 ranks hold each expert, and no token came to the last of four
    gradient, router = 2 * 2 * 8, 4 * 2 * 8
    assert asked.least(trial) == 2 * 5 * router + 3 * (2 + 2) * gradient
    for rank in trial.inputs:
        rank["gradients"] = [each * (rank["same"][0] == 0 and rank is trial.inputs[0]) for each in rank["gradients"]]
    assert asked.least(trial) == 2 * 5 * router + 2 * 2 * gradient


# ---- chapter 9

LAYOUTS = ["dp2 tp2", "pp2 cp2", "dp2 cp2 ep2", "dp2 cp2 tp2 pp2 ep4", "dp2 tp4 ep2", "pp3 tp2"]


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


# ---- chapter 10: layouts and runs

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
