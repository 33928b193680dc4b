"""Exercises that ask for a number take any number that is right, and nothing else; recorded answers try their types."""

import math
from fractions import Fraction

import numpy
import pytest
import torch

from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.on_rank.plain import data, number
from course_lib.grading.registry import exercises_of

NUMBERS = [each for chapter in range(1, 11) for each in exercises_of(chapter)
           if isinstance(each, NumberExercise) and each.number != "3.9"]  # whose range holds what was measured, too


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_the_right_number_passes_every_trial_and_one_beyond_its_tolerance_or_no_number_none(asked):
    def cause(trial, value):
        return asked.judge(trial, [number(lambda *_: value, [])], SentBytes([[0]], exact=True)).cause

    beyond = max(0.001, 1.1 * asked.tolerance[0])
    for trial in asked.trials(0):
        right = asked.solve(*trial.inputs[0])
        assert cause(trial, right) is None and cause(trial, torch.tensor(right, dtype=torch.float64)) is None
        assert cause(trial, right * (1 + beyond) + 0.001)
        assert type(right) is not int or cause(trial, right + 1)
        for value in (math.nan, math.inf, -math.inf, "12", None, [1.0], True, 10**400, {}):
            assert "expected" in cause(trial, value)


@pytest.mark.parametrize("value, as_data", [
    (numpy.int64(3), 3), (numpy.float32(0.5), 0.5), (Fraction(1, 2), 0.5), (torch.tensor(7), 7), (True, 1),
    (torch.tensor([1.5, 2.5]), [1.5, 2.5]), (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), ("F0", "F0"),
    ((1, [2, (3,)]), [1, [2, [3]]]), (range(3), [0, 1, 2]),
    ({"tp": numpy.int32(2), "dp": 4}, {"dp": 4, "tp": 2}), (None, None), ({1, 2}, "a set"),
    ([object()], ["an object"]), (1j, "a complex"), (numpy.array(2.5), 2.5),
])
def test_whole_and_real_numbers_of_any_type_are_data_and_the_rest_are_words(value, as_data):
    assert data(value) == as_data and type(data(value)) is type(as_data)
