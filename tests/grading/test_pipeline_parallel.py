"""The exercises of chapter 4 take every order that is good enough, and tell mistakes and odd answers apart."""

import pytest
import torch

from course_lib.costs.bubbles import bubble_of_total, peak_1f1b
from course_lib.grading.chapters.models import ROUNDING, gradients_of, model_of
from course_lib.grading.chapters.pipeline_parallel import EXERCISES, backward, bubble, chunks, layout, orders, partition
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic
from course_lib.pipeline_parallel import gpipe, interleaved_1f1b, one_f_one_b, simulate, zb_h1, zb_h2
from course_lib.pipeline_parallel.partition import balanced_cuts

ORDERS = pytest.mark.parametrize("asked", [kind() for kind in EXERCISES if issubclass(kind, orders.OrderExercise)],
                                 ids=lambda each: each.number)
NOTHING = Traffic([[0]], exact=True)


def written(schedule):
    return [[str(action) for action in actions] for actions in schedule.actions]


@ORDERS
def test_par_is_correct_and_every_mistake_of_the_first_trial_is_refused_with_its_own_cause(asked):
    trial = asked.trials(seed=0)[0]
    arguments = asked.arguments(trial)
    assert asked.judge(trial, written(asked.par(*arguments)), NOTHING).cause is None
    mistakes = list(asked.mistakes(*arguments))
    for number, (cause, given) in enumerate(mistakes):
        assert cause in asked.judge(trial, given, NOTHING).cause
        assert not any(given == other for _, other in mistakes[:number]), cause


def test_an_order_that_is_better_than_asked_or_merely_different_passes():
    rounds, under_par = orders.RoundsOrder(), orders.ParSchedule()
    trial = rounds.trials(0)[0]
    backwards = [["F0", "F1", "F2", "B2", "B1", "B0", "F3", "F4", "F5", "B5", "B4", "B3", "F6", "F7", "B7", "B6"]] * 4
    assert rounds.judge(trial, backwards, NOTHING).cause is None
    three_at_most = orders.one_f_one_b_orders(4, 8, lambda r: min(2, 3 - r))
    assert rounds.judge(trial, three_at_most, NOTHING).cause is None
    assert under_par.judge(under_par.trials(0)[0], written(zb_h1(4, 8)), NOTHING).cause is None


@pytest.mark.parametrize("p, m, g", [(4, 8, 4), (3, 6, 2), (2, 9, 3)])
def test_rounds_idle_as_their_budget_says(p, m, g):
    k = m // g
    assert simulate(orders.RoundsOrder().par(p, m, g)).bubble_fraction == k * (p - 1) / (m + k * (p - 1))
    assert simulate(orders.RoundsOrder().par(p, m, m)) == simulate(orders.schedule_of(written(gpipe(p, m)), m))


@pytest.mark.parametrize("p, m, v", [(4, 8, 2), (2, 6, 3), (3, 3, 2), (1, 2, 2), (5, 10, 4), (4, 8, 1)])
def test_where_messages_take_no_time_half_the_papers_head_start_wastes_no_more_and_holds_less(p, m, v):
    par, paper = simulate(chunks.InterleavedOrder().par(p, m, v)), simulate(interleaved_1f1b(p, m, v))
    assert par.bubble_fraction == paper.bubble_fraction == bubble_of_total(p, m, v)
    assert par.peak_in_flight == tuple(v * p - r for r in range(p))
    assert sum(par.peak_in_flight) <= sum(paper.peak_in_flight)


def test_less_idle_time_for_more_memory_than_allowed_is_refused():
    asked = orders.ParSchedule()
    trial = asked.trials(0)[1]
    assert simulate(zb_h2(4, 12)).span < simulate(zb_h1(4, 12)).span
    assert "has 7 micro-batches in flight, where 4 will do" in asked.judge(trial, written(zb_h2(4, 12)), NOTHING).cause


@ORDERS
@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], ["F"], ["F0 "], ["X0"], ["F00000"], [0], [None], {},
                                 ["F0"] * 5000, ["F0.9"], ["F0.x"], ["F99"], ["F-1"], ["F0", "F0"], [["F0"]],
                                 torch.ones(2)])
def test_orders_of_any_form_are_refused_with_words(asked, odd):
    trial = asked.trials(0)[0]
    assert asked.judge(trial, [odd] * trial.world_size, NOTHING).cause
    assert asked.judge(trial, [*written(asked.par(*asked.arguments(trial)))[:3], odd], NOTHING).cause


@pytest.mark.parametrize("costs, stages", partition.CASES)
def test_the_best_cut_is_as_good_as_the_librarys(costs, stages):
    starts = [*balanced_cuts(costs, stages), len(costs)]
    library = [end - start for start, end in zip(starts, starts[1:])]
    assert partition.worst_of(costs, partition.best_counts(costs, stages)) == partition.worst_of(costs, library)


@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], [0, 3, 3], [6], [2, 2], [-1, 4, 3], [2, 2, 1],
                                 [True, 2, 3], ["2", "2", "2"], [2.0, 2.0, 2.0], [7, -3, 2]])
def test_cuts_of_any_form_are_refused_with_words(odd):
    asked = partition.Partition()
    assert asked.judge(asked.trials(0)[0], [odd], NOTHING).cause


def test_expected_gradients_are_those_of_one_process_with_one_tied_weight_and_no_two_mistakes_look_the_same():
    asked = backward.PipelineBackward()
    inputs = asked.trials(seed=1)[0].inputs
    model = model_of(inputs[0])
    model[-1].weight = model[0].weight
    x, y = (torch.cat(column) for column in zip(*inputs[0]["batches"]))
    torch.nn.functional.mse_loss(model(x), y).backward()
    right = asked.expected(inputs)
    assert alike([gradients_of(backward.stage_of(model, r)) for r in range(len(inputs))], right, ROUNDING)
    answers = [("right", right), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        for told, other in answers[:number]:
            assert not alike(given, other, ROUNDING), (cause, told)


def test_gradients_that_nobody_sent_are_not_believed():
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    right = asked.expected(trial.inputs)
    tied, needed, both = asked.allowed(trial)
    assert both == tied + needed
    sent = [[0, 0, tied], [needed, 0, 0], [tied, needed, 0]]
    assert asked.judge(trial, right, Traffic(sent, exact=True)).cause is None
    assert "send the gradient of the tied" in asked.judge(trial, right, Traffic([[0] * 3] * 3, exact=True)).cause
    silent = [sent[0], [0, 0, 0], sent[2]]
    assert "send x.grad to the rank before" in asked.judge(trial, right, Traffic(silent, exact=True)).cause
    sent[0][1] = 8
    assert "rank 0 sent 80 bytes, where 72 bytes will do" in asked.judge(trial, right, Traffic(sent, exact=True)).cause


@pytest.mark.parametrize("odd", [None, {}, "words", {"0.weight": "a str", "0.bias": None}, [1, 2], torch.ones(1)])
def test_gradients_of_any_form_are_refused_with_words(odd):
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    assert asked.judge(trial, [odd] * trial.world_size, Traffic([[0] * 3] * 3, exact=True)).cause


def test_every_mistake_about_a_layout_is_refused_with_its_own_cause_on_the_first_trial():
    asked = layout.Layout()
    trial = asked.trials(seed=0)[0]
    mistakes = list(asked.mistakes(*trial.inputs[0]))
    for number, (cause, given) in enumerate(mistakes):
        assert cause in asked.judge(trial, [given], NOTHING).cause
        assert given not in [other for _, other in mistakes[:number]], cause


@pytest.mark.parametrize("p, m", [(1, 4), (4, 8), (8, 4)])
def test_a_layout_is_judged_by_what_1f1b_holds_and_takes(p, m):
    N, S, M, A, C, k = asked = 8, 64, 100, 3, 80, 2
    b = S * p / N / m  # sequences of a micro-batch
    assert layout.held(p, m, *asked) == (M + peak_1f1b(p, m, 0) * b * A) / p
    played = simulate(one_f_one_b(p, m))
    assert layout.step(p, m, *asked) == played.makespan / 3 * (b + k) / p


@pytest.mark.parametrize("seed", range(20))
def test_some_layout_fits_every_trial_and_the_best_of_them_passes(seed):
    asked = layout.Layout()
    for trial in asked.trials(seed):
        _, p, m = min(layout.fitting(*trial.inputs[0]))
        assert asked.judge(trial, [[p, m]], NOTHING).cause is None


@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], [4], [4, 8, 1], [0, 1], [-4, 8], [3, 8], [4, 0], [4, 7],
                                 [4.0, 8.0], [True, 1], ["4", "8"], torch.ones(2)])
def test_layouts_of_any_form_are_refused_with_words(odd):
    asked = layout.Layout()
    assert asked.judge(asked.trials(0)[0], [odd], NOTHING).cause


def test_the_least_batch_is_the_first_with_which_no_more_is_idle():
    asked = bubble.LeastBatch()
    for trial in asked.trials(seed=3):
        num_devices, tp, p, v, tokens, idle = trial.inputs[0]
        m = round(asked.expected(*trial.inputs[0]) / (num_devices / (tp * p) * tokens))
        assert bubble_of_total(p, m, v) <= idle + 1e-9 < bubble_of_total(p, m - 1, v) + 1e-9
