"""A reader's answers: which are right and why the others are not used, a GPT trained by them, and the command."""

import ast
from pathlib import Path

import nbformat
import pytest

from course_lib.grading import recorded
from course_lib.mine import HOLES, Answers, find, loop, model, run
from course_lib.mine.yours import NAMES, read_cells
from course_lib.reference import GPTConfig
from course_lib.runtime import Deadlock, RankFailed
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
    assert set(answers.yours) == set(HOLES), answers
    assert "16 of 16 parts are yours" in repr(answers)
    assert "5.1 my_f_and_g: yours adds up over tp, forward and backward" in repr(answers)
    fresh = find(SOLUTIONS.with_name("exercises"))
    assert not fresh.yours and set(fresh.whys.values()) == {"not written yet"}


def test_an_answer_that_is_wrong_raises_is_no_python_or_is_left_out_is_named_and_the_others_are_used(tmp_path):
    change(tmp_path, "05_tensor_parallel", my_f_and_g=("def my_f_and_g(", "def my_f_and_g(("))
    change(tmp_path, PLANS, my_one_f_one_b=('[f"F{warmup + i}", f"B{i}"]', '[f"B{i}", f"F{warmup + i}"]'),
           my_schedule=("def my_schedule(", "import nothing_of_this_name\n\n\ndef other("))
    answers = find(tmp_path, without=["5.4"])
    assert set(answers.yours) == {"4.1", "5.5"} and answers.whys["4.4"].startswith("not right yet: ")
    assert "4.4 my_one_f_one_b: the course's, not right yet: " in repr(answers)
    assert answers.whys["5.4"] == "left out, as you asked"
    assert answers.whys["2.1"] == "there is no notebook of its chapter"
    missing = "there is no function of this name in"
    assert answers.whys["5.1"].startswith(f"{missing} 05_tensor_parallel.ipynb; cell ") and (
        "does not parse: " in answers.whys["5.1"])
    assert answers.whys["4.6"].startswith(f"{missing} 04_pipeline_parallel.ipynb; <cell ") and (
        "ModuleNotFoundError: No module named 'nothing_of_this_name'" in answers.whys["4.6"])


def test_a_folder_without_exercises_and_an_unknown_number_are_refused(tmp_path, capfd):
    with pytest.raises(ValueError, match="no exercises in .*expected 02_collectives/02_collectives.ipynb"):
        find(tmp_path)
    with pytest.raises(ValueError, match="without 1.1: expected some of 2.1, 2.2"):
        find(SOLUTIONS, without=["1.1"])
    with pytest.raises(SystemExit):
        main(["--mine", str(tmp_path), "--layout", "pp2"])
    assert "no exercises in" in capfd.readouterr().err


def test_each_exercise_whose_text_names_its_work_in_training_has_a_hole_that_is_called_by_its_name():
    told = {number for chapter in range(1, 11) for number in recorded.of_chapter(chapter)["work"]}
    assert told == set(HOLES)
    called = {node.id for page in (loop, model) for node in ast.walk(ast.parse(Path(page.__file__).read_text("utf-8")))
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for number, hole in HOLES.items():
        name, _ = recorded.of_exercise(number, "exercises")
        assert name == hole.__name__ and name in called and hole in [vars(page).get(name) for page in (loop, model)]


def test_nothing_outside_of_the_loop_is_changed():
    for path in Path(loop.__file__).parent.glob("*.py"):
        assert "setattr(" not in path.read_text(encoding="utf-8"), path


# Training by them

IN_EVERY_RUN = {"3.2", "4.1", "9.2", "9.3", "9.4"}
RING = {"2.1", "2.2", "2.3"}
SUMS = {"5.1", "5.4", "5.5"}


def unchecked(folder=SOLUTIONS, numbers=tuple(NAMES)):
    """Answers without the checks that find() makes."""
    paths = {str(int(path.stem[:2])): path for path in folder.glob("0[2-9]_*/0[2-9]_*.ipynb")}
    cells = {number: read_cells(paths[number[0]]) for number in NAMES if number[0] in paths}
    return Answers({number: "" if number in numbers else "left out" for number in NAMES}, cells)


def outcome(answers, layout, **options):
    return run(answers, layout, 3, CONFIG, batch_size=12, **options)


def rare(*values):
    return pytest.param(*values, marks=pytest.mark.ci)


@pytest.mark.parametrize("layout, options, used", [
    rare("dp1", {}, {"4.4"}),
    rare("dp2,pp2,tp2", {"num_microbatches": 2}, RING | SUMS | {"4.4"}),
    ("dp2,pp2", {"num_microbatches": 2, "schedule": "ZB-H1"}, RING | {"4.6"}),
    rare("pp4", {"num_microbatches": 4}, RING | {"4.4"}),
    ("tp2", {}, SUMS | {"4.4"}),
    rare("dp3", {}, RING | {"4.4"}),
    rare("cp2,tp2", {}, RING | SUMS | {"4.4", "7.3", "7.7"}),
    ("dp2,tp2,zero2", {"num_microbatches": 2}, SUMS | {"2.2", "4.4", "6.3"}),
    rare("dp2,pp2,zero2", {"num_microbatches": 2, "schedule": "ZB-H1"}, RING | {"4.6", "6.3"}),
    rare("dp2,pp2,tp2,zero2", {"num_microbatches": 2}, RING | SUMS | {"4.4", "6.3"}),
    rare("dp2,cp2,zero2", {"num_microbatches": 2}, {"2.2", "4.4", "6.3", "7.3", "7.7"}),
], ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value))
def test_the_loss_is_one_processs_and_the_parts_that_a_layout_uses_all_worked(layout, options, used):
    found = outcome(unchecked(), layout, **options)
    assert max(found.differences) < 1e-12, found
    assert set(found.calls) == used | IN_EVERY_RUN


def test_bytes_of_answers_are_those_of_a_count_by_hand():
    """Of the last of three steps: 12 rows of 16 tokens in 64 bits, two layers, D = 32."""
    tp2 = outcome(unchecked(), "tp2")
    assert tp2.sent["5.5"] == 2 * 3 * (12 * 16 * 8)  # two ranks, three numbers a token
    assert tp2.sent["9.4"] == 2 * 8
    activation = 12 * 16 * 32 * 8
    assert tp2.sent["5.1"] == 2 * (2 * 4 + 2) * activation  # ranks; four in each layer, and embedding and head
    assert tp2.sent_in_all == sum(tp2.sent.values())
    cp2 = outcome(unchecked(), "cp2")
    keys_and_values = 2 * 12 * (16 // 2) * 32 * 8
    assert cp2.sent["7.7"] == 2 * 2 * 3 * keys_and_values  # ranks, layers; forward, and backward two-fold
    numbers = 256 * 32 + 2 * (3 * 32 * 33 + 32 * 32 + 4 * 32 * 33 + 4 * 32 * 32), 16 * 32 + 2 * 32 + 2 * 6 * 32
    assert sum(numbers) == loop.make_model(CONFIG, 0).num_parameters()  # cut by tp, were there any; not cut
    assert cp2.sent["2.1"] == sum(numbers) * 8 + 2 * (2 * 8)  # and the number of tokens, filled up to 4 halves
    assert cp2.sent["2.2"] - cp2.sent["2.1"] == 2 * 8 * (cp2.calls["2.2"] // 2 // 3)  # 8 bytes of length each


@pytest.mark.parametrize("numbers", [(), ("2.1", "2.2", "2.3"), ("2.3",), ("3.2", "2.2"), ("9.3",),
                                     ("5.1", "9.4")], ids=str)
def test_any_answers_work_beside_the_courses_own(numbers):
    found = outcome(unchecked(numbers=numbers), "dp2,tp2")
    assert found.lies_on_one_process and set(found.calls) == set(numbers)
    if not numbers:
        assert not found.sent and "0 of 16 parts are yours" in repr(found)


@pytest.mark.parametrize("line, error, words", [
    ("assert logits.shape[-1] < 100, 'so many'", RankFailed,
     "(?s)rank 0 failed at <cell [0-9]+ in 05_tensor_parallel.ipynb>, line 14 .*AssertionError: so many"),
    ("if logits.shape[-1] > 100 and r == 0: dist.recv(torch.empty(1), 1)", Deadlock,
     "rank 0  waits at <cell [0-9]+ in 05_tensor_parallel.ipynb>, line 14"),
], ids=["raises", "hangs"])
def test_an_answer_that_passes_its_check_and_fails_in_training_is_named_with_its_line(line, error, words, tmp_path):
    with pytest.raises(error, match=words):
        outcome(with_a_line(tmp_path, line), "tp2")


def test_an_answer_that_gives_something_else_is_seen_in_the_loss(tmp_path):
    found = outcome(with_a_line(tmp_path, "c = 1e-4 * float(logits.shape[-1] > 100)"), "tp2")
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


@pytest.mark.parametrize("layout, options, words", [
    ("pp2", {"schedule": "GPipe"}, "schedule='GPipe' has no hole: expected one of 1F1B, ZB-H1"),
    ("dp2,ep2", {}, "dp2,ep2, dropout=0.0: expected dp, pp, cp and tp, zero2 or none"),
    ("dp2,zero1", {}, "dp2,zero1, .*expected dp, pp, cp and tp, zero2 or none"),
    ("tp3", {}, "expected a number that 3 divides"),
])
def test_what_the_loop_does_not_know_is_refused_before_a_rank_starts(layout, options, words):
    with pytest.raises(ValueError, match=words):
        outcome(unchecked(), layout, **options)


# The command: the table, the run, whose code sent what; or one line that says what is wrong

SMALL = ["--layout", "pp2", "--layers", "2", "--hidden-size", "32", "--sequence-length", "16"]


def test_it_trains_with_what_is_right_and_says_whose_code_did_what(tmp_path, capfd):
    folder = change(tmp_path, PLANS)
    main(["--mine", str(folder), "--without", "4.1", *SMALL, "--steps", "2", "--batch-size", "8", "--micro-batches",
          "2"])
    printed = capfd.readouterr().out
    assert "2 of 16 parts are yours" in printed and "4.1 my_partition: the course's, left out, as you asked" in printed
    assert "step    1   loss " in printed and "4.4 my_one_f_one_b: 4 calls" in printed
    assert "your code sent 0 of" in printed and "the losses of 2 steps lie on one process's" in printed
    with pytest.raises(SystemExit):
        main(["--mine", str(folder), *SMALL, "--precision", "bf16", "--save", str(tmp_path / "saved")])
    assert "--mine --save --precision" in (err := capfd.readouterr().err) or "--mine --precision --save" in err


def test_an_answer_that_fails_in_training_ends_it_with_its_line(tmp_path):
    fails = "assert (num_ranks, num_microbatches) != (2, 23)\n    warmup = min("
    folder = change(tmp_path, PLANS, my_one_f_one_b=("warmup = min(", fails))
    with pytest.raises(SystemExit, match="rank 0 failed at <cell [0-9]+ in 04_pipeline_parallel.ipynb>, line 7"):
        main(["--mine", str(folder), *SMALL, "--steps", "2", "--batch-size", "23", "--micro-batches", "23"])
