"""Exercises that ask for a number take any number that is right, and nothing else."""

import math

import pytest

from course_lib.grading import check
from course_lib.grading.exercise import Traffic
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.registry import exercise, exercises_of

NUMBERS = [each for chapter in (1, 2, 4, 6) for each in exercises_of(chapter) if isinstance(each, NumberExercise)]
NO_TRAFFIC = Traffic([[0]], exact=True)


def judged(asked, trial, value):
    return asked.judge(trial, [{"value": float(value) if type(value) is int else value}], NO_TRAFFIC).cause


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_the_right_number_passes_every_trial_and_one_beyond_its_tolerance_none(asked):
    beyond = max(0.001, 1.1 * asked.tolerance[0])
    for trial in asked.trials(0):
        right = asked.expected(*trial.inputs[0])
        assert judged(asked, trial, right * (1 + 1e-9)) is None
        assert judged(asked, trial, right * (1 + beyond) + 0.001) is not None


@pytest.mark.parametrize("asked", NUMBERS, ids=lambda each: each.number)
def test_another_seed_asks_for_another_number_too(asked):
    first, second = (asked.trials(seed)[-1].inputs for seed in (1, 2))
    assert first != second and asked.trials(1)[-1].inputs == first


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "12", None, [1.0]])
def test_what_is_no_number_is_wrong_and_never_an_error(value):
    asked = exercise("1.2")
    assert "expected" in judged(asked, asked.trials(0)[0], value)
    assert asked.judge(asked.trials(0)[0], ["anything at all"], NO_TRAFFIC).cause
    assert asked.judge(asked.trials(0)[0], [], NO_TRAFFIC).cause


def test_a_reader_who_returns_nothing_is_told_what_is_expected():
    def my_parallel_share(num_devices, single_s, parallel_s):
        pass

    assert "it returned nothing (None): expected a number, 0.8" in check("1.4", my_parallel_share).cause
