"""The exercises of chapter 6 compare with one process that holds everything, tell mistakes apart, and weigh."""

import pytest
import torch

from course_lib.grading.chapters.models import ROUNDING, batch_loss, model_of
from course_lib.grading.chapters.zero import whole_step
from course_lib.grading.chapters.zero.clipping import ClipOverShards
from course_lib.grading.chapters.zero.gradients import ScatteredGradients
from course_lib.grading.chapters.zero.limits import MostDevices
from course_lib.grading.chapters.zero.master import MasterSteps
from course_lib.grading.chapters.zero.memory import BytesPerRank
from course_lib.grading.chapters.zero.optimizer import SETTINGS, STEPS, ShardedAdamW, from_all, gradient_of, trained
from course_lib.grading.chapters.zero.parameters import most_held
from course_lib.grading.chapters.zero.shards import padded, pieces, settled
from course_lib.grading.chapters.zero.whole_step import WholeStep
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic
from course_lib.zero import device_memory, held_bytes


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
@pytest.mark.parametrize("precision, per_element", [("mixed", (2, 2, 12)), ("fp32", (4, 4, 8))])
def test_bytes_per_rank_are_those_of_the_chapter_and_of_the_paper_where_n_divides(stage, precision, per_element):
    asked = BytesPerRank()
    assert asked.expected([640, 64], 16, stage, *per_element) == device_memory(704, 16, stage, precision).total
    sizes = [1000, 9, 7, 5]
    held = held_bytes(sizes, 4, 3)  # fp32, with 4 bytes for each tensor's count of steps
    assert asked.expected(sizes, 4, 3, 4, 4, 8) == held.total - 4 * len(sizes)


def test_no_two_mistakes_of_the_first_case_look_the_same_and_none_looks_right():
    asked = BytesPerRank()
    _, arguments = asked.cases[0]
    values = [asked.expected(*arguments), *(value for _, value in asked.mistakes(*arguments))]
    assert len(set(values)) == len(values)


def test_expected_weights_are_those_of_torch_with_an_unsharded_optimiser():
    for trial in ShardedAdamW().trials(seed=1):
        weights, cut = trial.inputs[0]["weights"].clone(), trial.inputs[0]["num_decayed"]
        decayed, others = torch.nn.Parameter(weights[:cut]), torch.nn.Parameter(weights[cut:])
        optimizer = torch.optim.AdamW([{"params": [decayed]}, {"params": [others], "weight_decay": 0.0}], **SETTINGS)
        for _ in range(STEPS):
            gradient = gradient_of(trial.inputs[0], weights)
            decayed.grad, others.grad = gradient[:cut], gradient[cut:]
            optimizer.step()
        assert alike([weights] * trial.world_size, trained(trial.inputs, from_all), ROUNDING)


def test_expected_pieces_are_those_of_torch_on_one_process_with_all_rows():
    asked = WholeStep()
    for trial in asked.trials(seed=5):
        model, n = model_of(trial.inputs[0]), trial.world_size
        optimizer = torch.optim.AdamW(model.parameters(), **SETTINGS)
        for step in range(whole_step.STEPS):
            optimizer.zero_grad()
            sum(batch_loss(model, rank["batches"][step]) / n for rank in trial.inputs).backward()
            optimizer.step()
        right = [[pieces(weight, n)[r] for weight in model.state_dict().values()] for r in range(n)]
        assert alike(asked.expected(trial.inputs), right, ROUNDING)


@pytest.mark.parametrize("asked", [ShardedAdamW(), MasterSteps(), ScatteredGradients(), WholeStep()],
                         ids=lambda each: each.number)
def test_no_mistake_looks_right_and_no_two_look_the_same(asked):
    inputs = asked.trials(seed=2)[0].inputs
    answers = [("right", asked.expected(inputs)), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        assert not any(alike(given, other, asked.tolerance) for told, other in answers[:number] if told != cause), cause


def test_a_frozen_parameter_has_no_pieces():
    asked = ScatteredGradients()
    assert all("0.bias" not in rank for rank in asked.expected(asked.trials(seed=3)[0].inputs))


def test_pieces_are_equally_long_and_together_the_tensor():
    tensor = torch.arange(10.0).view(2, 5)
    assert [piece.tolist() for piece in pieces(tensor, 3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert padded(tensor, 5).shape == (10,)


def test_clipped_pieces_have_the_norm_that_torch_clips_to():
    asked = ClipOverShards()
    for trial in asked.trials(seed=4):
        whole = torch.nn.Parameter(torch.zeros(14 * trial.world_size, dtype=torch.float64))
        whole.grad = torch.cat([piece for rank in trial.inputs for piece in rank["pieces"]])
        norm = torch.nn.utils.clip_grad_norm_([whole], trial.inputs[0]["max_norm"]).item()
        expected = asked.expected(trial.inputs)
        together = torch.cat([piece for rank in expected for piece in rank["pieces"]])
        assert alike(together, whole.grad, asked.tolerance)
        assert all(abs(rank["norm"] - norm) <= 1e-9 * norm for rank in expected)


def test_a_norm_of_zero_is_left_alone_whatever_divides_by_it():
    asked = ClipOverShards()
    trial = asked.trials(seed=4)[-1]
    answers = [{**rank, "calls": [["all_reduce", 8, 8.0]]} for rank in asked.expected(trial.inputs)]
    assert asked.judge(trial, answers, Traffic([[0] * 2] * 2, exact=True)).cause is None
    divided = [{**answer, "pieces": [piece / 0.0 for piece in answer["pieces"]]} for answer in answers]
    assert "A norm of 0 is not above max_norm" in asked.judge(trial, divided, Traffic([[0] * 2] * 2, exact=True)).cause


def test_pieces_that_do_not_fit_the_model_are_told_by_their_number_and_kind():
    asked = WholeStep()
    trial = asked.trials(seed=4)[0]
    right = asked.expected(trial.inputs)
    for given, words in (([right[0][:1]] * 3, "has 1 parameters, where the model has 4"),
                         ([["a DTensor"] * 4] * 3, "fully_shard cuts the parameters by rows"),
                         (["nothing (None)"] * 3, "it returned nothing (None): return the optimiser")):
        answers = [{"pieces": each, "calls": []} for each in given]
        assert words in asked.judge(trial, answers, Traffic([[0] * 3] * 3, exact=True)).cause


def test_at_the_most_devices_the_slower_pass_computes_as_long_as_it_sends():
    asked = MostDevices()
    for trial in asked.trials(seed=4):
        tokens, F, W, w, g = trial.inputs[0]
        T = tokens / asked.expected(*trial.inputs[0])
        spare = [2 * T / F - w / W, 4 * T / F - (w + g) / W]  # seconds for each parameter, forward and backward
        assert abs(min(spare)) < 1e-9 * T / F and max(spare) >= 0


def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    asked = ShardedAdamW()
    trial = asked.trials(seed=6)[2]
    answers = [{"weights": weights, "calls": [], "kind": "AdamW", "state_bytes": asked.allowed_state(trial)}
               for weights in asked.expected(trial.inputs)]
    assert asked.judge(trial, answers, Traffic([[0] * 4] * 4, exact=True)).cause is None
    outside = asked.judge(trial, answers, Traffic([[1 << 20] * 4] * 4, exact=False))
    assert "rank 0 sent 4 MiB, where 288 KiB will do: one all-gather a step" in outside.cause
    assert outside.figures(believed=False).count("4 MiB") == 1


def test_weighing_waits_for_what_is_about_to_be_freed_and_not_for_ever():
    falling = iter([30, 20, 10, 0])
    assert settled(lambda: next(falling), allowed=10) == 10
    assert settled(lambda: 30, allowed=10) == 30


@pytest.mark.parametrize("held, owners, words", [
    ([10, 10, 10, 10, 10], [0] * 5, None), ([99, 10, 10, 10, 10], [99] * 5, "the whole weights are still there"),
    ([10, 99, 10, 10, 10], [9] * 5, "gathered for forward outlives"), ([10, 99, 10, 10, 10], [0] * 5, "a view keeps"),
    ([10, 10, 10, 10, 99], [9] * 5, "gathered for backward outlives"),
])
def test_what_outlives_its_use_is_told_by_when_and_by_whom(held, owners, words):
    points = ["before the first forward pass", "in the forward pass, after layer 0", "after the forward pass",
              "in the backward pass, after layer 2", "after the backward pass"]
    told = most_held([{"held": held, "owners": owners, "points": points}], 10).complaint
    assert told is None if words is None else words in told
