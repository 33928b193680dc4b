"""A reader's answers: which are right and why the others are not used, a GPT trained by them, and the command."""

import ast
from pathlib import Path

import nbformat
import pytest

from course_lib.grading import recorded
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.mine import HOLES, Answers, Part, find, loop, memory, run
from course_lib.mine import experts as experts_page
from course_lib.mine.find import NUMBERS, read_notebook
from course_lib.reference import GPTConfig
from course_lib.runtime import Deadlock, RankFailed, launch
from course_lib.train import main

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
CONFIG = GPTConfig(2, 32, 4, sequence_length=16)
PLANS = "04_pipeline_parallel"
PAGES = (loop, experts_page, memory)


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
    assert answers.numbers == set(HOLES), answers
    assert repr(answers) == "26 of 26 parts are yours"
    fresh = find(SOLUTIONS.with_name("exercises"))
    assert not fresh.numbers and {part.why for part in fresh.parts} == {"not written yet"}


def test_an_answer_that_is_wrong_raises_is_no_python_or_is_left_out_is_named_and_the_others_are_used(tmp_path):
    change(tmp_path, "03_data_parallel")
    change(tmp_path, PLANS, my_one_f_one_b=('[f"F{warmup + i}", f"B{i}"]', '[f"B{i}", f"F{warmup + i}"]'),
           my_schedule=("def my_schedule", "import nothing_of_this_name\ndef my_schedule"),
           my_interleaved=("def my_interleaved(", "def my_interleaved(("))
    answers = find(tmp_path, without=["3.2"])
    whys = {part.number: part.why for part in answers.parts}
    assert answers.numbers == {"3.3", "4.1", "4.2"} and whys["4.4"].startswith("not right yet: ")
    assert "4.4 my_one_f_one_b: not right yet: " in repr(answers) and "not right yet" in answers.html()
    assert {number: whys[number] for number in ("3.2", "4.6", "4.7")} == {
        "3.2": "left out, as you asked",
        "4.6": "its cell raises ModuleNotFoundError: No module named 'nothing_of_this_name'",
        "4.7": "there is no function my_interleaved in 04_pipeline_parallel.ipynb"}


def test_a_folder_without_exercises_and_an_unknown_number_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no exercises in .*expected 02_collectives/02_collectives.ipynb"):
        find(tmp_path)
    with pytest.raises(ValueError, match="without 1.1: expected some of 2.1, 2.2"):
        find(SOLUTIONS, without=["1.1"])
    with pytest.raises(SystemExit, match="no exercises in"):
        main(["--mine", str(tmp_path), "--layout", "pp2"])


def test_each_exercise_whose_text_names_its_work_in_training_has_a_hole_that_is_called_by_its_name():
    told = {number for chapter in range(1, 11) for number in recorded.of_chapter(chapter)["work"]}
    assert told == set(HOLES) == set(NUMBERS)
    called = {node.id for page in PAGES for node in ast.walk(ast.parse(Path(page.__file__).read_text(encoding="utf-8")))
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for number, hole in HOLES.items():
        name, _ = recorded.of_exercise(number, "exercises")
        assert name in called and hole in [vars(page).get(name) for page in PAGES]


def test_nothing_outside_of_the_loop_is_changed():
    for path in Path(loop.__file__).parent.glob("*.py"):
        assert "setattr(" not in path.read_text(encoding="utf-8"), path


# Training by them

IN_EVERY_RUN = {"4.1", "9.2", "9.3", "9.4"}
RING = {"2.1", "2.2", "2.3", "3.2", "3.3"}
EXPERTS = {"num_experts": 4, "k": 2, "balance": 0.01}


def unchecked(folder=SOLUTIONS, numbers=tuple(NUMBERS)):
    """Answers without the checks that find() makes."""
    notebooks = tuple(read_notebook(path) for path in sorted(folder.glob("0[2-9]_*/0[2-9]_*.ipynb")))
    return Answers(notebooks, tuple(Part(number, "" if number in numbers else "left out") for number in NUMBERS))


def outcome(answers, layout, **options):
    return run(answers, layout, 3, CONFIG, batch_size=12, **options)


def rare(*values):
    return pytest.param(*values, marks=pytest.mark.ci)


@pytest.mark.parametrize("layout, options, used", [
    rare("dp1", {}, {"3.2", "4.4", "7.5"}),
    rare("dp2,pp2,tp2", {"num_microbatches": 2}, RING | {"4.4", "5.1", "5.4", "5.5", "7.5"}),
    ("dp2,pp2", {"num_microbatches": 2, "schedule": "GPipe"}, RING | {"4.2", "7.5"}),
    rare("pp2", {"num_microbatches": 2, "schedule": "ZB-H1"}, RING | {"4.6"}),
    rare("pp2", {"num_microbatches": 2, "schedule": "interleaved 1F1B"}, RING | {"4.7", "7.5"}),
    rare("pp4", {"num_microbatches": 4}, RING | {"4.4", "7.5"}),
    ("tp2", {"sequence_parallel": True}, RING | {"4.4", "5.4", "5.5", "7.1", "7.5"}),
    rare("cp2,tp2", {}, RING | {"4.4", "5.1", "5.4", "5.5", "7.3", "7.5", "7.7"}),
    rare("dp2,tp2,zero2", {"num_microbatches": 2}, {"2.2", "4.4", "5.1", "5.4", "5.5", "6.3", "7.5"}),
    rare("dp2,pp2,zero2", {"num_microbatches": 2, "schedule": "ZB-H1"}, RING | {"4.6", "6.3"}),
    rare("dp3,zero1", {}, {"2.1", "2.2", "4.4", "7.5"}),
    ("dp2,zero3", {}, {"2.1", "2.2", "4.4", "7.5"}),
    rare("dp2,pp2,tp2,zero3", {"num_microbatches": 2, "sequence_parallel": True},
         RING | {"4.4", "5.4", "5.5", "7.1", "7.5"}),
    ("dp4,ep4", {"experts": EXPERTS}, RING | {"4.4", "7.5", "8.3", "8.4"}),
    rare("dp2,tp2,ep2", {"experts": EXPERTS}, RING | {"4.4", "5.1", "5.4", "5.5", "7.5", "8.3", "8.4"}),
    rare("dp2,cp2,ep2,zero1", {"experts": {**EXPERTS, "num_experts": 8}, "num_microbatches": 2},
         {"2.1", "2.2", "3.2", "4.4", "7.3", "7.5", "7.7", "8.3"}),
    rare("dp2", {"experts": {**EXPERTS, "scoring": "sigmoid"}}, RING | {"4.4", "7.5", "8.1", "8.2"}),
], ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value))
def test_the_loss_is_one_processs_and_the_parts_that_a_layout_uses_all_worked(layout, options, used):
    found = outcome(unchecked(), layout, **options)
    assert max(found.differences) < 1e-12, found
    assert set(found.calls) - {"3.2"} == (used | IN_EVERY_RUN) - {"3.2"}


def test_bytes_of_answers_are_those_of_a_count_by_hand():
    """Of the last of three steps: 12 rows of 16 tokens in 64 bits, two layers, D = 32."""
    tp2 = outcome(unchecked(), "tp2")
    assert tp2.sent["5.5"] == 2 * 3 * (12 * 16 * 8)  # two ranks, three numbers a token
    assert tp2.sent["9.4"] == 2 * 8
    cp2 = outcome(unchecked(), "cp2")
    keys_and_values = 2 * 12 * (16 // 2) * 32 * 8
    assert cp2.sent["7.7"] == 2 * 2 * 4 * keys_and_values  # ranks, layers; forward twice (7.5), backward two-fold
    numbers = 256 * 32 + 2 * (3 * 32 * 33 + 32 * 32 + 4 * 32 * 33 + 4 * 32 * 32), 16 * 32 + 2 * 32 + 2 * 6 * 32
    assert sum(numbers) == loop.GPT(CONFIG).num_parameters()  # cut by tp, were there any; not cut
    assert cp2.sent["2.1"] == sum(numbers) * 8 + 2 * (2 * 8)  # and the number of tokens, filled up to 4 halves
    assert cp2.sent["2.2"] - cp2.sent["2.1"] == 2 * 8 * (cp2.calls["2.2"] // 2 // 3)  # 8 bytes of length each


@pytest.mark.parametrize("numbers", [(), ("2.1", "2.2", "2.3"), ("2.1", "3.3"), ("3.2", "3.3"), ("9.3",),
                                     ("5.1", "9.4")], ids=str)
def test_any_answers_work_beside_the_courses_own(numbers):
    found = outcome(unchecked(numbers=numbers), "dp2,tp2")
    assert found.lies_on_one_process and set(found.calls) == set(numbers)
    if not numbers:
        assert not found.sent and "0 of 26 parts are yours" in repr(found)


@pytest.mark.parametrize("line, error, words", [
    ("assert logits.shape[-1] < 100, 'so many'", RankFailed,
     "your 5.5, my_vocab_loss in 05_tensor_parallel.ipynb, line 14: AssertionError: so many.* --without 5.5"),
    ("c = float(logits.shape[-1] > 100)", RankFailed,
     r"your 5.5, my_vocab_loss: it gives float64\[\] = .* expected float64\[\] ="),
    ("if logits.shape[-1] > 100 and r == 0: dist.recv(torch.empty(1), 1)", Deadlock,
     "rank 0  waits at 5.5 in 05_tensor_parallel.ipynb, line 14"),
], ids=["raises", "gives something else", "hangs"])
def test_an_answer_that_passes_its_check_and_fails_in_training_is_named_with_its_line(line, error, words, tmp_path):
    with pytest.raises(error, match=words):
        outcome(with_a_line(tmp_path, line), "tp2")


def test_an_answer_that_gives_something_else_and_is_not_compared_is_seen_in_the_loss(tmp_path):
    found = outcome(with_a_line(tmp_path, "c = 1e-4 * float(logits.shape[-1] > 100)"), "tp2", compare=False)
    assert not found.lies_on_one_process and "leave one process's at step 0 of 3" in repr(found)


def test_tokens_may_be_dealt_out_in_another_way_than_the_courses(tmp_path):
    change(tmp_path, "07_sequence_parallel", my_document_positions=("torch.cat(own)", "torch.cat(own).flip(0)"))
    for numbers in (["7.3"], ["7.3", "7.7"]):
        found = outcome(unchecked(tmp_path, numbers), "cp2")
        assert max(found.differences) < 1e-12 and set(found.calls) == set(numbers)


def with_a_line(folder, line):
    """my_vocab_loss with a line more, alone."""
    highest = "highest = logits.amax(-1)"
    change(folder, "05_tensor_parallel", my_vocab_loss=(highest, f"{highest}\n    {line}"))
    return unchecked(folder, {"5.5"})


@pytest.mark.parametrize("saved, resumed, options", [
    ("dp2,tp2", "pp2", {}), rare("pp2", "dp2,tp2", {}), rare("dp2,tp2,ep2", "dp4,ep4", {"experts": EXPERTS})])
def test_a_checkpoint_is_read_by_the_readers_9_5_under_another_layout(saved, resumed, options, tmp_path):
    outcome(unchecked(), saved, save=tmp_path, **options)
    found = run(unchecked(), resumed, 6, CONFIG, batch_size=12, resume=tmp_path, **options)
    assert found.calls["9.5"] > 50 and len(found.losses) == 3
    assert max(found.differences) < 1e-12, found
    with pytest.raises(RankFailed, match="the run in .* is one of .*, seed=0.*: expected .*, seed=1"):
        outcome(unchecked(), resumed, resume=tmp_path, seed=1, **options)


@pytest.mark.parametrize("layout, options, words", [
    ("pp2", {"schedule": "zb-v"},
     "schedule='ZB-V' is of no exercise: expected one of 1F1B, GPipe, ZB-H1, interleaved 1F1B"),
    ("dp2,ep1,etp2", {"experts": EXPERTS}, "dp2,etp2, dropout=0.0: expected etp1"),
    ("dp2,zero1", {"save": Path("anywhere")}, "dp2,zero1, .* no zero with checkpoints"),
    ("tp3", {}, "expected a number that 3 divides"),
    ("dp2", {"resume": Path("nowhere")}, "no checkpoint in nowhere: expected your_own_"),
])
def test_what_the_loop_does_not_know_is_refused_on_every_rank(layout, options, words):
    with pytest.raises(RankFailed, match=words) as failed:
        launch(loop.train, CONFIG, ParallelLayout.from_string(layout), 3, batch_size=12, **options,
               world_size=ParallelLayout.from_string(layout).world_size)
    assert isinstance(failed.value.cause, ValueError)


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
    with pytest.raises(SystemExit):
        main(["--mine", str(folder), *SMALL, "--precision", "bf16"])
    assert "--mine with --precision: the loop with your functions has 64 bits" in capfd.readouterr().err


def test_an_answer_that_fails_in_training_ends_it_with_one_line(tmp_path):
    fails = "assert (num_ranks, num_microbatches) != (2, 23)\n    warmup = min("
    folder = change(tmp_path, PLANS, my_one_f_one_b=("warmup = min(", fails))
    with pytest.raises(SystemExit) as ended:
        main(["--mine", str(folder), *SMALL, "--steps", "2", "--batch-size", "23", "--micro-batches", "23"])
    assert str(ended.value).startswith("your 4.4, my_one_f_one_b in 04_pipeline_parallel.ipynb, line 7: AssertionError")
    assert "\n" not in str(ended.value)
