"""The exercises of chapter 4 take every order that is good enough, and tell mistakes and odd answers apart."""

import pytest
import torch

from course_lib.grading.chapters.models import ROUNDING, gradients_of, model_of
from course_lib.grading.chapters.pipeline_parallel import EXERCISES, backward, orders, partition
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic
from course_lib.pipeline_parallel import one_f_one_b, simulate, zb_h1, zb_h2
from course_lib.pipeline_parallel.partition import balanced_cuts

ORDERS = pytest.mark.parametrize("asked", [kind() for kind in EXERCISES if issubclass(kind, orders.OrderExercise)],
                                 ids=lambda each: each.number)
NOTHING = Traffic([[0]], exact=True)


def written(schedule):
    return [[str(action) for action in actions] for actions in schedule.actions]


@ORDERS
def test_par_is_correct_and_every_mistake_of_the_first_trial_is_refused_with_its_own_cause(asked):
    trial = asked.trials(seed=0)[0]
    _, p, m = trial.inputs[0]
    assert asked.judge(trial, written(asked.par(p, m)), NOTHING).cause is None
    mistakes = list(asked.mistakes(p, m))
    for number, (cause, given) in enumerate(mistakes):
        assert cause in asked.judge(trial, given, NOTHING).cause
        assert not any(given == other for _, other in mistakes[:number]), cause


def test_an_order_that_is_better_than_asked_or_merely_different_passes():
    gpipe, under_par = orders.GPipeOrder(), orders.ParSchedule()
    trial = gpipe.trials(0)[0]
    backwards = [[*orders.each("F", range(8)), *orders.each("B", reversed(range(8)))]] * 4
    assert gpipe.judge(trial, backwards, NOTHING).cause is None
    assert gpipe.judge(trial, written(one_f_one_b(4, 8)), NOTHING).cause is None
    assert under_par.judge(under_par.trials(0)[0], written(zb_h1(4, 8)), NOTHING).cause is None


def test_less_idle_time_for_more_memory_than_allowed_is_refused():
    asked = orders.ParSchedule()
    trial = asked.trials(0)[1]
    assert simulate(zb_h2(4, 12)).span < simulate(zb_h1(4, 12)).span
    assert "has 7 micro-batches in flight, where 4 will do" in asked.judge(trial, written(zb_h2(4, 12)), NOTHING).cause


@ORDERS
@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], ["F"], ["F0 "], ["X0"], ["F00000"], [0], [None], {},
                                 ["F0"] * 5000, ["F99"], ["F-1"], ["F0", "F0"], [["F0"]], torch.ones(2)])
def test_orders_of_any_form_are_refused_with_words(asked, odd):
    trial = asked.trials(0)[0]
    assert asked.judge(trial, [odd] * trial.world_size, NOTHING).cause
    assert asked.judge(trial, [*written(asked.par(4, 8))[:3], odd], NOTHING).cause


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


def test_expected_gradients_are_those_of_one_process_and_no_two_mistakes_look_the_same():
    asked = backward.PipelineBackward()
    inputs = asked.trials(seed=1)[0].inputs
    model = model_of(inputs[0])
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
    needed = asked.allowed(trial)[1]
    sent = [[0, 0, 0], [needed, 0, 0], [0, needed, 0]]
    assert asked.judge(trial, right, Traffic(sent, exact=True)).cause is None
    assert "is the least that can carry them" in asked.judge(trial, right, Traffic([[0] * 3] * 3, exact=True)).cause
    sent[0][1] = 8
    assert "rank 0 sent 8 bytes, where 0 bytes will do" in asked.judge(trial, right, Traffic(sent, exact=True)).cause


@pytest.mark.parametrize("odd", [None, {}, "words", {"0.weight": "a str", "0.bias": None}, [1, 2], torch.ones(1)])
def test_gradients_of_any_form_are_refused_with_words(odd):
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    assert asked.judge(trial, [odd] * trial.world_size, Traffic([[0] * 3] * 3, exact=True)).cause
