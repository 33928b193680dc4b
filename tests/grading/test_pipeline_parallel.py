"""The exercises of chapter 4 take every order and plan that is good enough, and refuse odd answers with words."""

from itertools import combinations

import pytest
import torch
from torch import nn

from course_lib.costs.bubbles import bubble_of_total, peak_1f1b
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.models import ROUNDING
from course_lib.grading.judges.pipeline_parallel import backward, plans
from course_lib.grading.registry import exercises_of
from course_lib.pipeline_parallel import gpipe, interleaved_1f1b, one_f_one_b, simulate, zb_h1, zb_h2
from course_lib.pipeline_parallel.partition import balanced_cuts
from tools.solutions import SOLUTIONS, names_of

ORDERS = pytest.mark.parametrize("asked", [each for each in exercises_of(4) if isinstance(each, plans.OrderExercise)],
                                 ids=lambda each: each.number)
NOTHING = SentBytes([[0]], exact=True)


def solve_orders(asked, *size):
    """The lists of all ranks of an exercise's solution."""
    function = names_of(SOLUTIONS[4])[asked.function]
    return [function(r, *size) for r in range(size[0])]


def orders(schedule):
    return [[str(action) for action in actions] for actions in schedule.actions]


@ORDERS
@pytest.mark.parametrize("seed", range(5))
def test_the_solution_is_as_good_as_par_on_every_trial(asked, seed):
    for trial in asked.trials(seed):
        answers = solve_orders(asked, *trial.inputs[0][1:])
        assert asked.judge(trial, answers, NOTHING).cause is None
        for spent in asked.usage(trial, answers, NOTHING):
            assert spent.measured == pytest.approx(spent.allowed)


def test_a_par_of_the_library_passes_but_for_the_papers_head_start():
    for asked in (plans.RoundsOrder(), plans.OneFOneBOrder(), plans.ParSchedule(), plans.InterleavedOrder()):
        trial = asked.trials(seed=0)[1]
        judged = asked.judge(trial, orders(asked.par(*trial.inputs[0][1:])), NOTHING)
        assert bool(judged.over) == (asked.number == "4.7")
        assert not judged.over or judged.over.what == "has"


def test_two_plans_that_cost_as_much_are_told_apart():
    asked = plans.Partition()
    trial = asked.trials(seed=0)[0]
    by_number, other = (asked.judge(trial, [counts], NOTHING) for counts in ([2, 2, 2], [3, 1, 2]))
    assert by_number.over.measured == other.over.measured
    assert not by_number.sketch.is_like(other.sketch)


def test_an_order_that_is_better_than_asked_or_merely_different_passes():
    rounds, under_par = plans.RoundsOrder(), plans.ParSchedule()
    trial = rounds.trials(0)[1]
    backwards = [["F0", "F1", "F2", "B2", "B1", "B0", "F3", "F4", "F5", "B5", "B4", "B3", "F6", "F7", "B7", "B6"]] * 5
    assert rounds.judge(trial, backwards, NOTHING).cause is None
    three_at_most = orders(one_f_one_b(3, 6))
    assert rounds.judge(rounds.trials(0)[2], three_at_most, NOTHING).cause is None
    assert under_par.judge(under_par.trials(0)[2], orders(zb_h1(4, 8)), NOTHING).cause is None


@pytest.mark.parametrize("p, m, g", [(4, 8, 4), (3, 6, 2), (2, 9, 3)])
def test_rounds_idle_as_their_budget_says(p, m, g):
    k = m // g
    assert simulate(plans.RoundsOrder().par(p, m, g)).bubble_fraction == k * (p - 1) / (m + k * (p - 1))
    assert plans.RoundsOrder().par(p, m, m).actions == gpipe(p, m).actions


@pytest.mark.parametrize("p, m, v", [(4, 8, 2), (2, 6, 3), (3, 3, 2), (1, 2, 2), (5, 10, 4), (4, 8, 1)])
def test_where_messages_take_no_time_half_the_papers_head_start_wastes_no_more_and_holds_less(p, m, v):
    asked, paper = plans.InterleavedOrder(), interleaved_1f1b(p, m, v)
    half = simulate(plans.schedule_of(solve_orders(asked, p, m, v), paper))
    assert half.bubble_fraction == simulate(paper).bubble_fraction == bubble_of_total(p, m, v)
    assert list(half.peak_in_flight) == asked.allowed_in_flight(paper) == [v * p - r for r in range(p)]
    assert sum(half.peak_in_flight) <= sum(simulate(paper).peak_in_flight)


def test_less_idle_time_for_more_memory_than_allowed_is_refused():
    asked = plans.ParSchedule()
    trial = asked.trials(0)[3]
    assert simulate(zb_h2(4, 12)).span < simulate(zb_h1(4, 12)).span
    assert "has 7 micro-batches in flight, where 4 will do" in asked.judge(trial, orders(zb_h2(4, 12)), NOTHING).cause


@ORDERS
@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], ["F"], ["F0 "], ["X0"], ["F00000"], [0], [None], {},
                                 ["F0"] * 5000, ["F0.9"], ["F0.x"], ["F99"], ["F-1"], ["F0", "F0"], [["F0"]],
                                 torch.ones(2)])
def test_orders_any_form_are_refused_with_words(asked, odd):
    trial = asked.trials(0)[0]
    assert asked.judge(trial, [odd] * trial.world_size, NOTHING).cause
    assert asked.judge(trial, [*orders(asked.par(*trial.inputs[0][1:]))[:3], odd], NOTHING).cause


@pytest.mark.parametrize("costs, stages", plans.Partition.cases)
def test_no_cut_is_better_than_the_librarys_which_is_par(costs, stages):
    every = [[0, *cuts] for cuts in combinations(range(1, len(costs)), stages - 1)]
    assert plans.slowest(costs, balanced_cuts(costs, stages)) == min(plans.slowest(costs, starts) for starts in every)


@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], [0, 3, 3], [6], [2, 2], [-1, 4, 3], [2, 2, 1],
                                 [True, 2, 3], ["2", "2", "2"], [2.0, 2.0, 2.0], [7, -3, 2]])
def test_cuts_of_any_form_are_refused_with_words(odd):
    asked = plans.Partition()
    assert asked.judge(asked.trials(0)[0], [odd], NOTHING).cause


def test_expected_gradients_are_those_of_a_model_with_one_tied_weight_and_the_mean_of_the_losses():
    asked = backward.PipelineBackward()
    for trial in asked.trials(seed=1):
        first, last, m = trial.inputs[0], trial.inputs[-1], len(trial.inputs[0]["xs"])
        layers = []
        for rank in trial.inputs:
            layers.append(nn.Linear(*rank["weight"].shape, dtype=torch.float64))
            layers[-1].load_state_dict({name: rank[name] for name in ("weight", "bias")})
        layers[-1].weight = layers[0].weight
        model = nn.Sequential(*[module for layer in layers for module in (layer, nn.Tanh())][:-1])
        for x, y in zip(first["xs"], last["targets"]):
            (nn.functional.mse_loss(model(x), y) / m).backward()
        right = [{"weight": layer.weight.grad, "bias": layer.bias.grad} for layer in layers]
        assert alike(asked.solve(trial.inputs), right, ROUNDING)


def test_what_comes_into_a_stage_is_what_the_stage_before_gives():
    for trial in backward.PipelineBackward().trials(seed=1):
        for before, after in zip(trial.inputs, trial.inputs[1:]):
            for x, y in zip(before["xs"], after["xs"]):
                assert alike(torch.tanh(x @ before["weight"].T + before["bias"]), y, ROUNDING)


def answer_of(rank, gradients, num_micro_batches=4, num_bytes=48):
    """One that sent each gradient as soon as it was there."""
    messages = [["send", rank - 1, num_bytes] for _ in range(num_micro_batches)] if rank else []
    order = [[number, number * bool(rank), number] for number in range(num_micro_batches)]
    return {"gradients": gradients, "messages": messages, "order": order}


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda answer: answer["order"].reverse(),
            "rank 1 computed the gradients of the micro-batches in the order [3, 2, 1, 0]",
        ),
        (lambda answer: answer["messages"].pop(), "rank 1 sent 3 messages of one micro-batch's size"),
        (
            lambda answer: answer["order"].__setitem__(3, [3, 1, 3]),
            "rank 1 had sent 1 gradients on when it computed number 3",
        ),
        (
            lambda answer: answer["order"].__setitem__(0, [0, 0, 4]),
            "rank 1 had received 4 gradients when it computed number 0",
        ),
    ],
)
def test_ranks_that_make_one_another_wait_are_told_so(change, words):
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[1]
    answers = [answer_of(rank, gradients) for rank, gradients in enumerate(asked.solve(trial.inputs))]
    change(answers[1])
    tied, needed, _ = backward.needed_bytes(trial)
    traffic = SentBytes([[0, 0, tied], [needed, 0, 0], [tied, needed, 0]], exact=True)
    assert words in asked.judge(trial, answers, traffic).cause


def test_gradients_that_nobody_sent_are_not_believed():
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[1]
    right = [answer_of(rank, gradients) for rank, gradients in enumerate(asked.solve(trial.inputs))]
    tied, needed, both = backward.needed_bytes(trial)
    assert both == tied + needed
    sent = [[0, 0, tied], [needed, 0, 0], [tied, needed, 0]]
    assert asked.judge(trial, right, SentBytes(sent, exact=True)).cause is None
    assert "send the gradient of the tied" in asked.judge(trial, right, SentBytes([[0] * 3] * 3, exact=True)).cause
    silent = [sent[0], [0, 0, 0], sent[2]]
    assert "send x.grad to the rank before" in asked.judge(trial, right, SentBytes(silent, exact=True)).cause
    sent[0][1] = 8
    assert "rank 0 sent 80 B, where 72 B will do" in asked.judge(trial, right, SentBytes(sent, exact=True)).cause


@pytest.mark.parametrize("odd", [None, {}, "words", {"weight": "a str", "bias": None}, [1, 2], torch.ones(1)])
def test_gradients_of_any_form_are_refused_with_words(odd):
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    assert asked.judge(trial, [odd] * trial.world_size, SentBytes([[0] * 3] * 3, exact=True)).cause


def test_a_layout_that_does_not_fit_has_no_points_and_a_slow_one_some():
    asked = plans.Layout()
    trial = next(trial for trial in asked.trials(seed=0) if trial.inputs[0] == [64, 512, 112, 8, 80, 2])
    too_large, slow = (asked.judge(trial, [layout], NOTHING) for layout in ([1, 8], [64, 512]))
    assert "the first rank holds 120 GB, where 80 will do" in too_large.cause
    assert not too_large.right
    assert "a step takes" in slow.cause
    assert slow.right


@pytest.mark.parametrize("p, m", [(1, 4), (4, 8), (8, 4)])
def test_a_layout_is_judged_by_what_1f1b_holds_and_takes(p, m):
    N, S, M, A, C, k = asked = 8, 64, 100, 3, 80, 2
    b = S * p / N / m  # sequences of a micro-batch
    assert plans.held_gb(p, m, *asked) == (M + peak_1f1b(p, m, 0) * b * A) / p
    played = simulate(one_f_one_b(p, m))
    assert plans.step(p, m, *asked) == played.makespan / 3 * (b + k) / p


@pytest.mark.parametrize("seed", range(20))
def test_some_layout_fits_every_trial_and_the_best_of_them_passes(seed):
    asked = plans.Layout()
    for trial in asked.trials(seed):
        _, p, m = min(plans.fitting(*trial.inputs[0]))
        assert asked.judge(trial, [[p, m]], NOTHING).cause is None


@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], [4], [4, 8, 1], [0, 1], [-4, 8], [3, 8], [4, 0], [4, 7],
                                 [4.0, 8.0], [True, 1], ["4", "8"], torch.ones(2)])
def test_layouts_of_any_form_are_refused_with_words(odd):
    asked = plans.Layout()
    assert asked.judge(asked.trials(0)[0], [odd], NOTHING).cause


def test_the_least_batch_is_the_first_with_which_no_more_is_idle():
    asked = backward.LeastBatch()
    for trial in asked.trials(seed=3):
        num_devices, tp, p, v, tokens, idle = trial.inputs[0]
        m = round(asked.solve(*trial.inputs[0]) / (num_devices / (tp * p) * tokens))
        assert bubble_of_total(p, m, v) <= idle + 1e-9 < bubble_of_total(p, m - 1, v) + 1e-9
