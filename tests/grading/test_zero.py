"""The exercises of chapter 6 compare with one process that holds everything, tell mistakes apart, and weigh."""

from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.grading.chapters.zero import EXERCISES
from course_lib.grading.chapters.zero.clipping import ClipOverShards, alike
from course_lib.grading.chapters.zero.gradients import ScatteredGradients
from course_lib.grading.chapters.zero.master import MasterSteps, near
from course_lib.grading.chapters.zero.memory import BytesPerRank
from course_lib.grading.chapters.zero.optimizer import SETTINGS, STEPS, ShardedAdamW, from_all, gradient_of, trained
from course_lib.grading.chapters.zero.parameters import GatheredOnUse
from course_lib.grading.chapters.zero.shards import all_close, padded, pieces, sent_too_much, settled
from course_lib.grading.exercise import Traffic
from course_lib.grading.trusted import TrustedGrade
from course_lib.zero import device_memory, held_bytes

ROOT = Path(__file__).resolve().parents[2]


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
        weights = torch.nn.Parameter(trial.inputs[0]["weights"].clone())
        optimizer = torch.optim.AdamW([weights], **SETTINGS)
        for _ in range(STEPS):
            weights.grad = gradient_of(trial.inputs[0], weights.detach())
            optimizer.step()
        assert all_close([weights.data] * trial.world_size, trained(trial.inputs, from_all))


@pytest.mark.parametrize("asked, right", [
    (ShardedAdamW(), lambda inputs: trained(inputs, from_all)),
    (MasterSteps(), lambda inputs: [MasterSteps.expected(inputs).bfloat16()] * len(inputs)),
])
def test_no_mistake_with_weights_looks_right_and_no_two_look_the_same(asked, right):
    inputs = asked.trials(seed=2)[0].inputs
    same = all_close if isinstance(asked, ShardedAdamW) else lambda a, b: all(near(x, y, 1e-2) for x, y in zip(a, b))
    answers = [("right", right(inputs)), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        assert not any(same(given, other) for told, other in answers[:number] if told != cause), cause


def test_the_mean_gradients_pieces_are_those_of_one_process_and_no_mistake_looks_like_them():
    asked = ScatteredGradients()
    for trial in asked.trials(seed=3):
        right = asked.expected(trial.inputs)
        assert all("0.bias" not in rank for rank in right)
        if trial.world_size == 3:
            answers = [("right", right), *asked.mistakes(trial.inputs)]
            for number, (cause, given) in enumerate(answers):
                for told, other in answers[:number]:
                    equal = all(a.keys() == b.keys() and all_close(list(a.values()), list(b.values()))
                                for a, b in zip(given, other))
                    assert told == cause or not equal, (cause, told)


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
        together = [(norm, [torch.cat([piece for _, clipped in expected for piece in clipped])])]
        assert all(map(alike, together, [(norm, [whole.grad])]))
        assert all(abs(told - norm) < 1e-9 * norm for told, _ in expected)


@pytest.mark.parametrize("asked", [kind() for kind in EXERCISES], ids=lambda each: each.number)
def test_the_same_seed_gives_the_same_trials(asked):
    for a, b in zip(asked.trials(seed=5), asked.trials(seed=5), strict=True):
        assert a.label == b.label and repr(a.inputs) == repr(b.inputs)


def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    trial = ShardedAdamW().trials(seed=6)[2]
    silent = [{"calls": []} for _ in range(4)]
    own, outside = Traffic([[0] * 4] * 4, exact=True), Traffic([[1 << 20] * 4] * 4, exact=False)
    assert sent_too_much(trial, silent, own, 1000, "why") is None
    assert "rank 0 sent 4 MiB, where 1000 bytes will do: why" in sent_too_much(trial, silent, outside, 1000, "why")


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
    points = ["before the first forward pass", "in the forward pass, after layer 0,", "after the forward pass",
              "in the backward pass, after layer 2,", "after the backward pass"]
    told = GatheredOnUse.outlived(0, 10, {"held": held, "owners": owners, "points": points})
    assert told is None if words is None else words in told


@pytest.mark.parametrize("folder, kind, words", [
    ("solutions", "stream", "correct"), ("exercises", "error", "not written yet")])
def test_a_class_gets_full_marks_for_the_solutions_and_none_for_stubs(folder, kind, words):
    notebook = nbformat.read(ROOT / folder / "06_zero" / "06_zero.ipynb", as_version=4)
    graded, _ = TrustedGrade(seed=7, time_limit_s=60.0).preprocess(notebook, {})
    outputs = [cell.outputs[0] for cell in graded.cells if cell.cell_type == "code" and cell.outputs]
    assert [output.output_type for output in outputs] == [kind] * len(EXERCISES), outputs
    assert all(words in (output.get("text") or output.get("ename")) for output in outputs)
