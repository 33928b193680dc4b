"""python -m course_lib.train --mine: the table, the run, whose code sent what; or one line that says what is wrong."""

import pytest

from course_lib.train import main
from tests.mine.cases import with_line

SMALL = ["--steps", "2", "--layers", "2", "--hidden-size", "32", "--sequence-length", "16", "--batch-size", "8"]
PLANS = "04_pipeline_parallel"


def test_it_trains_with_what_is_right_and_says_whose_code_did_what(tmp_path, capfd):
    folder = with_line(tmp_path, PLANS, "def my_rounds", "import nothing_of_this_name\ndef my_rounds")
    main(["--mine", str(folder), "--without", "4.1", "--layout", "pp2", "--micro-batches", "2", *SMALL])
    printed = capfd.readouterr().out
    assert "3 of 26 parts are yours" in printed and "4.2 my_rounds: its cell raises ModuleNotFoundError" in printed
    assert "4.1 my_partition: left out, as you asked" in printed and "4.4 my_one_f_one_b: 4 calls" in printed
    assert "your code sent 0 of" in printed and "the losses of 2 steps lie on one process's" in printed


def test_an_answer_that_fails_in_training_ends_it_with_one_line(tmp_path):
    fails = "assert (num_ranks, num_microbatches) != (2, 23)\n    warmup = min("
    folder = with_line(tmp_path, PLANS, "warmup = min(", fails)
    with pytest.raises(SystemExit) as ended:
        main(["--mine", str(folder), "--layout", "pp2", "--micro-batches", "23", *SMALL[:-1], "23"])
    assert str(ended.value).startswith("your 4.4, my_one_f_one_b in 04_pipeline_parallel.ipynb, line 7: AssertionError")
    assert "\n" not in str(ended.value)


def test_a_folder_without_exercises_ends_it_with_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no exercises in"):
        main(["--mine", str(tmp_path), "--layout", "pp2"])
