"""A reader's answers: which are right and why the others are not used, a GPT trained by them, and the command."""

from pathlib import Path

import nbformat
import pytest

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.grading import recorded
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.mine import SLOTS, Answers, Outcome, Part, TrainedBy, find
from course_lib.mine.cells import read_notebook
from course_lib.mine.find import COURSE, YOURS, function_of
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import Deadlock, RankFailed, launch
from course_lib.train import main

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
CONFIG = GPTConfig(2, 32, 4, sequence_length=16)
PLANS = "04_pipeline_parallel"


def change(folder, chapter, **changes):
    """`folder` with the solutions of `chapter` in it; in the cell of the function that is named, a line is replaced."""
    notebook = nbformat.read(SOLUTIONS / chapter / f"{chapter}.ipynb", as_version=4)
    for function, (old, new) in changes.items():
        cell, = (cell for cell in notebook.cells if cell.cell_type == "code" and f"def {function}(" in cell.source)
        assert old in cell.source
        cell.source = cell.source.replace(old, new)
    (folder / chapter).mkdir()
    nbformat.write(notebook, folder / chapter / f"{chapter}.ipynb")
    return folder


# Which are right

def test_the_solutions_are_all_found_and_right_and_fresh_exercises_are_not_written_yet():
    answers = find(SOLUTIONS)
    assert answers.numbers == set(SLOTS), answers
    assert repr(answers) == f"{len(SLOTS)} of {len(SLOTS)} parts are yours"
    fresh = find(SOLUTIONS.with_name("exercises"))
    assert not fresh.numbers and {part.why for part in fresh.parts} == {"not written yet"}


def test_an_answer_that_is_wrong_raises_is_no_python_or_is_left_out_is_named_and_the_others_are_used(tmp_path):
    change(tmp_path, "03_data_parallel")
    change(tmp_path, PLANS, my_one_f_one_b=('[f"F{warmup + i}", f"B{i}"]', '[f"B{i}", f"F{warmup + i}"]'),
           my_schedule=("def my_schedule", "import nothing_of_this_name\ndef my_schedule"),
           my_interleaved=("def my_interleaved(", "def my_interleaved(("))
    answers = find(tmp_path, without=["3.2"])
    whys = {part.number: part.why for part in answers.parts}
    assert answers.numbers == {"4.1", "4.2"} and whys["4.4"].startswith("not right yet: ")
    assert "4.4 my_one_f_one_b: not right yet: " in repr(answers) and "not right yet" in answers.html()
    assert {number: whys[number] for number in ("3.2", "3.3", "4.6", "4.7")} == {
        "3.2": "left out, as you asked",
        "3.3": "it calls my_buckets, which is not yours",
        "4.6": "its cell raises ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "4.7": "there is no function my_interleaved in 04_pipeline_parallel.ipynb"}


def test_a_folder_without_exercises_and_an_unknown_number_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no exercises in .*expected 02_collectives/02_collectives.ipynb"):
        find(tmp_path)
    with pytest.raises(ValueError, match="without 1.1: expected some of 2.1, 2.2"):
        find(SOLUTIONS, without=["1.1"])
    with pytest.raises(SystemExit, match="no exercises in"):
        main(["--mine", str(tmp_path), "--layout", "pp2"])


def test_each_exercise_whose_text_names_its_work_in_training_has_a_place_and_no_other():
    told = {number for chapter in range(1, 11) for number in recorded.of_chapter(chapter)["work"]}
    assert told == set(SLOTS)


# Training by them, in the places of the course's own functions

IN_EVERY_RUN = {"4.1", "9.2", "9.4"}
RING = {"2.1", "2.2", "2.3", "3.2", "3.3", "9.3"}
EXPERTS = {"num_experts": 4, "k": 2, "balance": 0.01}


def unchecked(folder=SOLUTIONS, numbers=tuple(SLOTS)):
    """Answers without the checks that find() makes."""
    notebooks = tuple(read_notebook(path) for path in sorted(folder.glob("0[2-9]_*/0[2-9]_*.ipynb")))
    return Answers(notebooks, tuple(Part(number, function_of(number), YOURS if number in numbers else COURSE)
                                    for number in SLOTS))


def train(layout, num_steps=3, experts=None, **options):
    if experts:
        options["make_model"] = lambda: moe_gpt(GPT(CONFIG), group=SINGLE, tokens_group=SINGLE, **experts)
    trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(layout), batch_size=12, **options)
    return trainer.train(num_steps, progress=False)


def outcome(answers, layout, experts=None, **options):
    world_size = ParallelLayout.from_string(layout).world_size
    report, account = launch(TrainedBy(train, answers), layout, experts=experts, world_size=world_size, **options)[0]
    return Outcome(answers, account, report, launch(train, "dp1", experts=experts, world_size=1)[0].losses)


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


def test_bytes_of_answers_are_those_of_their_axes_and_places_are_the_courses_again_after_the_run():
    before = HybridTrainer.__init__.__globals__["clip_grad_norm_"]
    found = outcome(unchecked(), "dp2,tp2")
    by_answer, by_axis = found.sent_by_answers, found.report.bytes_by_axis
    of_the_loss = 4 * 4  # each rank sends its 4 bytes once: the course averages it
    assert by_answer["2.1"] + by_answer["2.2"] == by_axis["dp"] - of_the_loss
    assert by_answer["5.1"] + by_answer["5.5"] == by_axis["tp"]
    assert HybridTrainer.__init__.__globals__["clip_grad_norm_"] is before


@pytest.mark.parametrize("numbers", [(), ("2.1", "2.2", "2.3"), ("3.2", "3.3"), ("9.3",), ("5.1", "9.4")], ids=str)
def test_any_answers_work_beside_the_courses_own(numbers):
    found = outcome(unchecked(numbers=numbers), "dp2,tp2")
    assert found.lies_on_one_process and set(found.account.calls) == set(numbers)
    if not numbers:
        assert not found.sent_by_answers and "0 of 26 parts are yours" in repr(found)


@pytest.mark.parametrize("line, error, words", [
    ("assert logits.shape[-1] < 100, 'so many'", RankFailed,
     "your 5.5, my_vocab_loss in 05_tensor_parallel.ipynb, line 14: AssertionError: so many.* --without 5.5"),
    ("c = float(logits.shape[-1] > 100)", RankFailed,
     r"your 5.5, my_vocab_loss: it gives float32\[\] = .* expected float32\[\] ="),
    ("if logits.shape[-1] > 100 and r == 0: dist.recv(torch.empty(1), 1)", Deadlock,
     "rank 0  waits at 5.5 in 05_tensor_parallel.ipynb, line 14"),
], ids=["raises", "gives something else", "hangs"])
def test_an_answer_that_passes_its_check_and_fails_in_training_is_named_with_its_line(line, error, words, tmp_path):
    highest = "highest = logits.amax(-1)"
    change(tmp_path, "05_tensor_parallel", my_vocab_loss=(highest, f"{highest}\n    {line}"))
    with pytest.raises(error, match=words):
        outcome(unchecked(tmp_path, {"5.5"}), "tp2")


def three_steps(layout, folder, goes_on):
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


# The command: the table, the run, whose code sent what; or one line that says what is wrong

SMALL = ["--layout", "pp2", "--layers", "2", "--hidden-size", "32", "--sequence-length", "16"]


def test_it_trains_with_what_is_right_and_says_whose_code_did_what(tmp_path, capfd):
    folder = change(tmp_path, PLANS, my_rounds=("def my_rounds", "import nothing_of_this_name\ndef my_rounds"))
    main(["--mine", str(folder), "--without", "4.1", *SMALL, "--steps", "2", "--batch-size", "8", "--micro-batches",
          "2"])
    printed = capfd.readouterr().out
    assert "3 of 26 parts are yours" in printed and "4.2 my_rounds: its cell raises ModuleNotFoundError" in printed
    assert "4.1 my_partition: left out, as you asked" in printed and "4.4 my_one_f_one_b: 4 calls" in printed
    assert "your code sent 0 of" in printed and "the losses of 2 steps lie on one process's" in printed


def test_an_answer_that_fails_in_training_ends_it_with_one_line(tmp_path):
    fails = "assert (num_ranks, num_microbatches) != (2, 23)\n    warmup = min("
    folder = change(tmp_path, PLANS, my_one_f_one_b=("warmup = min(", fails))
    with pytest.raises(SystemExit) as ended:
        main(["--mine", str(folder), *SMALL, "--steps", "2", "--batch-size", "23", "--micro-batches", "23"])
    assert str(ended.value).startswith("your 4.4, my_one_f_one_b in 04_pipeline_parallel.ipynb, line 7: AssertionError")
    assert "\n" not in str(ended.value)
