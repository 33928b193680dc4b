"""The exercises of chapter 4 take every order that is good enough, and tell mistakes and odd answers apart."""

from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.grading.chapters.pipeline_parallel import EXERCISES, backward, orders, partition
from course_lib.grading.exercise import Traffic
from course_lib.grading.trusted import TrustedGrade
from course_lib.pipeline_parallel import one_f_one_b, simulate, zb_h1, zb_h2
from course_lib.pipeline_parallel.partition import balanced_cuts

ROOT = Path(__file__).resolve().parents[2]
ORDERS = pytest.mark.parametrize("asked", [kind() for kind in EXERCISES if issubclass(kind, orders.OrderExercise)],
                                 ids=lambda each: each.number)
NOTHING = Traffic([[0]], exact=True)


def written(schedule):
    return [[str(action) for action in actions] for actions in schedule.actions]


@pytest.mark.parametrize("asked", [kind() for kind in EXERCISES], ids=lambda each: each.number)
def test_the_same_seed_gives_the_same_trials(asked):
    for a, b in zip(asked.trials(seed=4), asked.trials(seed=4), strict=True):
        assert a.label == b.label and repr(a.inputs) == repr(b.inputs)


@ORDERS
def test_par_is_correct_and_every_mistake_of_the_first_trial_is_refused_with_its_own_cause(asked):
    trial = asked.trials(seed=0)[0]
    _, p, m = trial.inputs[0]
    assert asked.judge(trial, written(asked.par(p, m)), NOTHING) is None
    mistakes = list(asked.mistakes(p, m))
    for number, (cause, given) in enumerate(mistakes):
        assert cause in asked.judge(trial, given, NOTHING)
        assert not any(given == other for _, other in mistakes[:number]), cause


def test_an_order_that_is_better_than_asked_or_merely_different_passes():
    gpipe, under_par = orders.GPipeOrder(), orders.ParSchedule()
    trial = gpipe.trials(0)[0]
    backwards = [[*orders.each("F", range(8)), *orders.each("B", reversed(range(8)))]] * 4
    assert gpipe.judge(trial, backwards, NOTHING) is None
    assert gpipe.judge(trial, written(one_f_one_b(4, 8)), NOTHING) is None
    assert under_par.judge(under_par.trials(0)[0], written(zb_h1(4, 8)), NOTHING) is None


def test_less_idle_time_for_more_memory_than_allowed_is_refused():
    asked = orders.ParSchedule()
    trial = asked.trials(0)[1]
    assert simulate(zb_h2(4, 12)).span < simulate(zb_h1(4, 12)).span
    assert "holds 7 micro-batches at a time, and 4 are allowed" in asked.judge(trial, written(zb_h2(4, 12)), NOTHING)


@ORDERS
@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], ["F"], ["F0 "], ["X0"], ["F00000"], [0], [None], {},
                                 ["F0"] * 5000, ["F99"], ["F-1"], ["F0", "F0"], [["F0"]], torch.ones(2)])
def test_orders_of_any_form_are_refused_with_words(asked, odd):
    trial = asked.trials(0)[0]
    assert asked.judge(trial, [odd] * trial.world_size, NOTHING)
    assert asked.judge(trial, [*written(asked.par(4, 8))[:3], odd], NOTHING)


@pytest.mark.parametrize("costs, stages", partition.CASES)
def test_the_best_cut_is_as_good_as_the_librarys(costs, stages):
    starts = [*balanced_cuts(costs, stages), len(costs)]
    library = [end - start for start, end in zip(starts, starts[1:])]
    assert partition.worst_of(costs, partition.best_counts(costs, stages)) == partition.worst_of(costs, library)


@pytest.mark.parametrize("odd", ["nothing (None)", None, 3, [], [0, 3, 3], [6], [2, 2], [-1, 4, 3], [2, 2, 1],
                                 [True, 2, 3], ["2", "2", "2"], [2.0, 2.0, 2.0], [7, -3, 2]])
def test_cuts_of_any_form_are_refused_with_words(odd):
    asked = partition.Partition()
    assert asked.judge(asked.trials(0)[0], [odd], NOTHING)


def test_expected_gradients_are_those_of_one_process_and_no_two_mistakes_look_the_same():
    asked = backward.PipelineBackward()
    inputs = asked.trials(seed=1)[0].inputs[0]
    stages = backward.stages_of(inputs)
    x, y = torch.cat(inputs["x"]), torch.cat(inputs["y"])
    torch.nn.functional.mse_loss(stages(x), y).backward()
    right = backward.expected(inputs, 1 / len(inputs["x"]))
    assert backward.alike([backward.plain_gradients(stage) for stage in stages], right)
    answers = [("right", right), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        for told, other in answers[:number]:
            assert not backward.alike(given, other), (cause, told)


def test_gradients_that_nobody_sent_are_not_believed():
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    right = backward.expected(trial.inputs[0], 1 / 4)
    needed = backward.messages_bytes(trial)
    sent = [[0, 0, 0], [needed, 0, 0], [0, needed, 0]]
    assert asked.judge(trial, right, Traffic(sent, exact=True)) is None
    assert "is the least that can carry them" in asked.judge(trial, right, Traffic([[0] * 3] * 3, exact=True))
    sent[0][1] = 8
    assert "rank 0 sent 8 bytes, where 0 bytes will do" in asked.judge(trial, right, Traffic(sent, exact=True))


@pytest.mark.parametrize("odd", [None, {}, "words", {"0.weight": "a str", "0.bias": None}, [1, 2], torch.ones(1)])
def test_gradients_of_any_form_are_refused_with_words(odd):
    asked = backward.PipelineBackward()
    trial = asked.trials(seed=1)[0]
    assert asked.judge(trial, [odd] * trial.world_size, Traffic([[0] * 3] * 3, exact=True))


@pytest.mark.parametrize("folder, kind, words", [
    ("solutions", "stream", "correct"), ("exercises", "error", "not written yet")])
def test_a_class_gets_full_marks_for_the_solutions_and_none_for_stubs(folder, kind, words):
    notebook = nbformat.read(ROOT / folder / "04_pipeline_parallel" / "04_pipeline_parallel.ipynb", as_version=4)
    graded, _ = TrustedGrade(seed=6, time_limit_s=60.0).preprocess(notebook, {})
    outputs = [cell.outputs[0] for cell in graded.cells if cell.cell_type == "code" and cell.outputs]
    assert [output.output_type for output in outputs] == [kind] * len(EXERCISES), outputs
    assert all(words in (output.get("text") or output.get("ename")) for output in outputs)
