"""A GPT trained by the solutions, in the places of the course's own functions."""

import pytest

from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.mine import TrainedBy
from course_lib.runtime import Deadlock, RankFailed, launch
from tests.mine.cases import CONFIG, outcome, train, unchecked, with_line

CHAPTER, CELL = "05_tensor_parallel", "highest = logits.amax(-1)"
IN_EVERY_RUN = {"4.1", "9.2", "9.4"}
RING = {"2.1", "2.2", "2.3", "3.2", "3.3", "9.3"}
EXPERTS = {"num_experts": 4, "k": 2, "balance": 0.01}


def rare(*values):
    return pytest.param(*values, marks=pytest.mark.ci)


@pytest.mark.parametrize("layout, options, used", [
    rare("dp2,pp2,tp2", {"num_microbatches": 2}, RING | {"4.4", "5.1", "5.4", "5.5", "7.5"}),
    ("dp2,pp2", {"num_microbatches": 2, "schedule": "gpipe"}, RING | {"4.2", "7.5"}),
    rare("pp2", {"num_microbatches": 2, "schedule": "zb-h1"}, {"4.6", "9.3"}),
    rare("pp2", {"num_microbatches": 2, "schedule": "interleaved"}, {"4.7", "7.5", "9.3"}),
    ("tp2", {"sequence_parallel": True}, {"4.4", "5.1", "5.4", "5.5", "7.1", "7.5", "9.3"}),
    rare("cp2", {}, RING | {"4.4", "7.3", "7.5", "7.7"}),
    rare("dp2,tp2,zero2", {"num_microbatches": 2}, {"2.2", "4.4", "5.1", "5.4", "5.5", "6.3"}),
    rare("dp3,zero1", {}, {"2.1", "2.2", "4.4", "7.5"}),
    ("dp2,zero3", {}, {"2.1", "2.2", "4.4"}),
    ("dp4,ep4", {"experts": EXPERTS}, RING | {"4.4", "7.5", "8.3", "8.4"}),
    rare("dp2", {"experts": {**EXPERTS, "scoring": "sigmoid"}}, RING | {"4.4", "7.5", "8.1", "8.2"}),
], ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value))
def test_the_loss_is_one_processs_and_the_parts_that_a_layout_uses_all_worked(layout, options, used):
    found = outcome(unchecked(), layout, **options)
    assert found.lies_on_one_process, found
    assert {number for number in found.account.calls if number != "7.4"} == used | IN_EVERY_RUN


def test_bytes_of_answers_are_those_of_their_axes():
    found = outcome(unchecked(), "dp2,tp2")
    by_answer, by_axis = found.sent_by_answers, found.report.bytes_by_axis
    of_the_loss = 4 * 4  # each rank sends its 4 bytes once: the course averages it
    assert by_answer["2.1"] + by_answer["2.2"] == by_axis["dp"] - of_the_loss
    assert by_answer["5.1"] + by_answer["5.5"] == by_axis["tp"]


def test_without_answers_the_course_trains_and_no_byte_is_the_readers():
    found = outcome(unchecked(numbers=()), "dp2")
    assert found.lies_on_one_process and not found.account.calls and not found.sent_by_answers
    assert "0 of 26 parts are yours" in repr(found)


@pytest.mark.parametrize("numbers", [("2.1", "2.2", "2.3"), ("3.2", "3.3"), ("9.3",), ("5.1", "9.4")], ids=str)
def test_any_answers_work_beside_the_courses_own(numbers):
    found = outcome(unchecked(numbers=numbers), "dp2,tp2")
    assert found.lies_on_one_process and set(found.account.calls) == set(numbers)


def test_places_are_the_courses_again_after_the_run():
    before = train.__globals__["HybridTrainer"].__init__.__globals__["clip_grad_norm_"]
    outcome(unchecked(), "dp2")
    assert train.__globals__["HybridTrainer"].__init__.__globals__["clip_grad_norm_"] is before


# What passes its check and fails in training

def changed(folder, line: str):
    return unchecked(with_line(folder, CHAPTER, CELL, f"{CELL}\n    {line}"), {"5.5"})


def test_an_answer_that_raises_in_training_is_named_with_its_line(tmp_path):
    with pytest.raises(RankFailed, match=r"your 5.5, my_vocab_loss in 05_tensor_parallel.ipynb, line 14: AssertionErr"
                                         r"or: so many.* --without 5.5"):
        outcome(changed(tmp_path, "assert logits.shape[-1] < 100, 'so many'"), "tp2")


def test_an_answer_that_gives_something_else_in_training_is_named(tmp_path):
    with pytest.raises(RankFailed, match=r"your 5.5, my_vocab_loss: it gives float32\[\] = .* expected float32\[\] ="):
        outcome(changed(tmp_path, "c = float(logits.shape[-1] > 100)"), "tp2")


def test_an_answer_that_hangs_in_training_is_named_with_its_line(tmp_path):
    with pytest.raises(Deadlock, match=r"rank 0  waits at 5.5 in 05_tensor_parallel.ipynb, line 14"):
        outcome(changed(tmp_path, "if logits.shape[-1] > 100 and r == 0: dist.recv(torch.empty(1), 1)"), "tp2")


# A checkpoint of another layout

def three_steps(layout: str, folder, goes_on: bool):
    trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(layout), batch_size=12)
    if goes_on:
        resume_run(trainer, folder)
    report = trainer.train(3, progress=False)
    save_run(trainer, folder, background=False)
    return report.losses


def test_a_checkpoint_is_read_by_the_readers_9_5_under_another_layout(tmp_path):
    launch(TrainedBy(three_steps, unchecked()), "dp2,tp2,zero1", tmp_path, False)
    losses, account = launch(TrainedBy(three_steps, unchecked()), "pp2", tmp_path, True, world_size=2)[0]
    assert account.calls["9.5"] > 50
    assert losses == pytest.approx(launch(train, "dp1", 6, world_size=1)[0].losses[3:], rel=1e-4)
