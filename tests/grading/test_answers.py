"""Every row of the chapters' tables is judged as it says: solutions and unusual right answers pass, wrong answers are
refused and told their sentence, a solution without what its text stresses is refused, docstrings have the example.
"""

import random

import pytest

from course_lib.grading import check
from course_lib.grading.exercise import SEED
from course_lib.grading.judges.calls import CollectiveExercise
from course_lib.grading.judges.tensors import TensorExercise
from course_lib.grading.registry import exercises_of
from course_lib.grading.staying import StayingAttempts
from tools.answers import at_home, misjudged, rows
from tools.solutions import SOLUTIONS

EXERCISES = [each for chapter in SOLUTIONS for each in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EXERCISES, ids=lambda each: each.number)


def rows_of(asked, kind=""):
    return rows(SOLUTIONS[int(asked.number.partition(".")[0])], kind, asked.number)


@pytest.fixture(scope="module")
def attempts():
    with StayingAttempts() as staying:
        yield staying


@BY_NUMBER
def test_every_row_of_its_table_is_judged_as_the_row_says(asked, attempts):
    judged = at_home(attempts)
    assert not [line for row in rows_of(asked) if (line := misjudged(row, judged))]


@BY_NUMBER
def test_check_gives_a_wrong_answer_the_sentence_and_no_more_points_than_it_is_worth(asked):
    wrong = rows_of(asked, "wrong")
    row = random.Random(asked.number).choice(wrong)  # the others by the same judge, on ranks that stay
    report = check(asked.number, row.function)
    assert row.says in report.cause and not report.passed and report.points in (0, asked.points / 2)


@pytest.mark.sweep(words="check itself, on new ranks, of every row")
@BY_NUMBER
def test_new_ranks_and_ranks_that_stay_agree_on_every_row(asked, attempts):
    for row in rows_of(asked):
        assert at_home(attempts)(row, SEED) == at_home()(row, SEED), row


@pytest.mark.sweep(words="unusual right answers at 10 random seeds")
@BY_NUMBER
def test_an_unusual_right_answer_passes_at_any_seed(asked, attempts):
    seeds = random.SystemRandom().sample(range(2**31), 10)
    print(f"python -m tools.answers judge --only {asked.number} --seeds", *seeds)
    judged = at_home(attempts)
    assert not [line for row in rows_of(asked, "right") for seed in seeds if (line := misjudged(row, judged, seed))]


@BY_NUMBER
def test_the_first_trial_is_the_example_at_every_seed(asked):
    assert len({repr(asked.trials(seed)[0]) for seed in (SEED, 5, 77)}) == 1


def test_messages_have_a_floor_wherever_they_are_the_exercise():
    for asked in EXERCISES:
        if isinstance(asked, CollectiveExercise | TensorExercise) and asked.operations != frozenset():
            several = [trial for trial in asked.trials(SEED) if trial.world_size > 1]
            if any(asked.bound(trial) for trial in several):  # else nothing is to be sent
                assert sum(asked.least(trial) > 0 for trial in several) >= 2, asked.number
