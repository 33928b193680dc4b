"""Every check decides: unusual right answers pass at ten seeds, a solution without what its text stresses is refused,
and the docstring's example is the first trial.
"""

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
from tools.examples import example_of, in_docstring
from tools.solutions import SOLUTIONS, names_of, right_answers
from tools.terms import deciding, terms

EXERCISES = [each for chapter in SOLUTIONS for each in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EXERCISES, ids=lambda each: each.number)
RIGHT = [each for path in SOLUTIONS.values() for each in right_answers(path)]
TERMS = [(path, left) for path in SOLUTIONS.values() for left in terms(path)]


@BY_NUMBER
def test_at_least_two_unusual_right_answers_and_two_stressed_terms_are_recorded(asked):
    assert sum(answer.number == asked.number for _, answer in RIGHT) >= 2
    assert sum(left.number == asked.number for _, left in TERMS) >= 2


@pytest.mark.parametrize("answer", [answer for _, answer in RIGHT],
                         ids=[f"{answer.number}-{name}" for name, answer in RIGHT])
def test_an_unusual_right_answer_passes_at_ten_seeds(answer):
    asked = exercise(answer.number)
    assert examine(asked, answer.function).verdict is Verdict.CORRECT
    trials = {repr((trial.inputs, trial.hidden)): trial for seed in range(10) for trial in asked.trials(seed)}
    for trial in trials.values():  # the fixed ones once
        found = outcome(asked, answer.function, trial)
        assert found.verdict is Verdict.CORRECT, found.cause


@pytest.mark.parametrize("path, left", TERMS, ids=[f"{left.number}-{left.words}" for _, left in TERMS])
def test_a_solution_without_what_its_text_stresses_is_refused(path, left):
    assert deciding(path, left, SEED)


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
