"""Exercises that ask for a number take any number that is right, and nothing else."""

import math
from fractions import Fraction

import numpy
import pytest
import torch

from course_lib.grading import check
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.on_rank.plain import data, number
from course_lib.grading.registry import exercise, exercises_of

NUMBERS = [each for chapter in (1, 2, 4, 6) for each in exercises_of(chapter) if isinstance(each, NumberExercise)]
NO_TRAFFIC = SentBytes([[0]], exact=True)


def fault_of(asked, trial, value):
    return asked.judge(trial, [number(lambda *_: value, [])], NO_TRAFFIC).cause


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_the_right_number_passes_every_trial_in_any_form_and_one_beyond_its_tolerance_none(asked):
    beyond = max(0.001, 1.1 * asked.tolerance[0])
    for trial in asked.trials(0):
        right = asked.solve(*trial.inputs[0])
        if type(right) is int:
            forms = (right, float(right), numpy.int64(right), torch.tensor(right), Fraction(right))
            assert fault_of(asked, trial, right + 1) and fault_of(asked, trial, right * (1 + 1e-9) + 1e-3)
        else:
            forms = (right * (1 + 1e-9), numpy.float64(right), torch.tensor(right, dtype=torch.float64))
        assert not any(fault_of(asked, trial, form) for form in forms)
        assert fault_of(asked, trial, right * (1 + beyond) + 0.001)


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_another_seed_asks_for_another_number_too(asked):
    first, second = (asked.trials(seed)[-1].inputs for seed in (1, 2))
    assert first != second and asked.trials(1)[-1].inputs == first


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "12", None, [1.0], True, 10**400, {}])
def test_what_is_no_number_is_wrong_and_never_an_error(value):
    asked = exercise("1.2")
    assert "expected" in fault_of(asked, asked.trials(0)[0], value)


@pytest.mark.parametrize("value, as_data", [
    (numpy.int64(3), 3), (numpy.float32(0.5), 0.5), (Fraction(1, 2), 0.5), (torch.tensor(7), 7), (True, 1),
    (torch.tensor([1.5, 2.5]), [1.5, 2.5]), (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), ("F0", "F0"),
    ((1, [2, (3,)]), [1, [2, [3]]]), (range(3), [0, 1, 2]),
    ({"tp": numpy.int32(2), "dp": 4}, {"dp": 4, "tp": 2}), (None, None), ({1, 2}, "a set"),
    ([object()], ["an object"]), (1j, "a complex"), (numpy.array(2.5), 2.5),
])
def test_whole_and_real_numbers_of_any_type_are_data_and_the_rest_are_words(value, as_data):
    assert data(value) == as_data and type(data(value)) is type(as_data)


def test_what_is_no_form_of_an_answer_is_wrong_too():
    asked = exercise("1.2")
    assert asked.judge(asked.trials(0)[0], ["anything at all"], NO_TRAFFIC).cause
    assert asked.judge(asked.trials(0)[0], [], NO_TRAFFIC).cause


def test_a_reader_who_returns_nothing_is_told_what_is_expected():
    def my_parallel_share(num_devices, single_s, parallel_s):
        pass

    assert "it returned nothing (None): expected a number, 0.8" in check("1.4", my_parallel_share).cause
