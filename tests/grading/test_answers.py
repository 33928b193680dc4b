"""Every check decides: unusual right answers pass at every seed, and the docstring's example is the first trial."""

import io

import pytest
import torch

from course_lib.grading.exercise import SEED
from course_lib.grading.judges.calls import CollectiveExercise
from course_lib.grading.judges.tensors import TensorExercise
from course_lib.grading.registry import exercise, exercises_of
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import attempt, examine, outcome
from course_lib.runtime import launch
from tests.sweep import some_of_each
from tools.examples import example_of, in_docstring
from tools.solutions import SOLUTIONS, names_of, right_answers

EXERCISES = [each for chapter in SOLUTIONS for each in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EXERCISES, ids=lambda each: each.number)
RIGHT = [each for path in SOLUTIONS.values() for each in right_answers(path)]


@BY_NUMBER
def test_at_least_two_unusual_right_answers_are_recorded(asked):
    assert sum(answer.number == asked.number for _, answer in RIGHT) >= 2


@pytest.mark.sweep("named", few=some_of_each(RIGHT, 1, lambda named: named[1].number), all=RIGHT,
                   ids=lambda named: f"{named[1].number}-{named[0]}",
                   words=f"1 unusual right answer to each exercise, of {len(RIGHT)}")
@pytest.mark.sweep("num_seeds", few=[1], all=[10], words="1 seed of 10, for each unusual right answer")
def test_an_unusual_right_answer_passes_at_every_seed(named, num_seeds):
    _, answer = named
    asked = exercise(answer.number)
    assert examine(asked, answer.function).verdict is Verdict.CORRECT  # the trials of SEED, all at once
    examined = set(map(drawn, asked.trials(SEED)))  # the fixed ones among them, which every seed has
    trials = {drawn(trial): trial for seed in range(num_seeds) for trial in asked.trials(seed)}
    for trial in (trial for key, trial in trials.items() if key not in examined):
        found = outcome(asked, answer.function, trial)
        assert found.verdict is Verdict.CORRECT, found.cause


def drawn(trial):
    return repr((trial.inputs, trial.hidden))


@BY_NUMBER
def test_the_docstrings_example_is_the_first_trial_of_every_seed(asked):
    path = SOLUTIONS[int(asked.number.partition(".")[0])]
    trial = asked.trials(SEED)[0]
    assert repr(asked.trials(SEED + 5)[0]) == repr(trial)
    function = names_of(path)[asked.function]
    ranks = launch(attempt, asked, function, trial, world_size=trial.world_size, device="cpu")
    answers = [torch.load(io.BytesIO(data), weights_only=True) for _, data, _ in ranks]
    for line in example_of(path, asked.number, trial, answers):
        assert in_docstring(function, line), f"{line!r} is not in the docstring of {asked.function}"


@BY_NUMBER
def test_messages_have_a_floor_wherever_they_are_the_exercise(asked):
    if isinstance(asked, CollectiveExercise | TensorExercise) and asked.operations != frozenset():
        several = [trial for trial in asked.trials(SEED) if trial.world_size > 1]
        if not any(asked.bound(trial) for trial in several):
            return  # nothing is to be sent
        assert sum(asked.least(trial) > 0 for trial in several) >= 2
