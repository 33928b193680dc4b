"""The table of a reader's answers: which are right, and why the others are not used."""

import pytest

from course_lib.grading import recorded
from course_lib.mine import SLOTS, find
from tests.mine.cases import SOLUTIONS, with_line

PLANS = "04_pipeline_parallel"


def whys(answers) -> dict[str, str]:
    return {part.number: part.why for part in answers.parts}


def test_the_solutions_are_all_found_and_right():
    answers = find(SOLUTIONS)
    assert answers.numbers == set(SLOTS), answers
    assert repr(answers) == f"{len(SLOTS)} of {len(SLOTS)} parts are yours"


def test_fresh_exercises_are_not_written_yet():
    answers = find(SOLUTIONS.with_name("exercises"))
    assert not answers.numbers and set(whys(answers).values()) == {"not written yet"}


def test_a_wrong_answer_is_named_and_the_others_are_used(tmp_path):
    answers = find(with_line(tmp_path, PLANS, 'order += [f"F{warmup + i}", f"B{i}"]',
                             'order += [f"B{i}", f"F{warmup + i}"]'))
    assert answers.numbers == {"4.1", "4.2", "4.6", "4.7"}
    assert whys(answers)["4.4"].startswith("not right yet: ")
    assert "4.4 my_one_f_one_b: not right yet: " in repr(answers) and "not right yet" in answers.html()


def test_a_cell_that_raises_is_named_and_the_others_are_used(tmp_path):
    answers = find(with_line(tmp_path, PLANS, "def my_one_f_one_b", "import nothing_of_this_name\ndef my_one_f_one_b"))
    assert whys(answers)["4.4"] == ("its cell raises ModuleNotFoundError: No module named 'nothing_of_this_name'")
    assert "4.6" in answers.numbers


def test_a_cell_that_is_no_python_is_named(tmp_path):
    answers = find(with_line(tmp_path, PLANS, "def my_one_f_one_b(", "def my_one_f_one_b(("))
    assert whys(answers)["4.4"] == "there is no function my_one_f_one_b in 04_pipeline_parallel.ipynb"


def test_what_is_left_out_is_the_courses_with_all_that_calls_it(tmp_path):
    answers = find(with_line(tmp_path, "03_data_parallel", "buckets[-1].append(index)", "buckets[-1].append(index)"),
                   without=["3.2"])
    assert whys(answers)["3.2"] == "left out, as you asked"
    assert whys(answers)["3.3"] == "it calls my_buckets, which is not yours"


def test_a_folder_without_exercises_and_an_unknown_number_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no exercises in .*expected 02_collectives/02_collectives.ipynb"):
        find(tmp_path)
    with pytest.raises(ValueError, match="without 1.1: expected some of 2.1, 2.2"):
        find(SOLUTIONS, without=["1.1"])


def test_each_exercise_whose_text_names_its_work_in_training_has_a_place_and_no_other():
    told = {number for chapter in range(1, 11) for number in recorded.of_chapter(chapter)["work"]}
    assert told == set(SLOTS)
