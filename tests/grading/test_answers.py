"""Every row of the chapters' tables is judged as it says: solutions and unusual right answers pass, wrong answers are
refused and told their sentence, a solution without what its text stresses is refused, docstrings have the example.
"""

import random

import pytest

from course_lib.grading import check
from course_lib.grading.exercise import SEED
from course_lib.grading.kinds import CollectiveExercise, TensorExercise
from course_lib.grading.registry import exercises_of
from course_lib.grading.staying import StayingAttempts
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.worker import Limits
from tests.sweep import seeds
from tools.answers import at_home, misjudged, rows
from tools.solutions import SOLUTIONS, code_cells

EXERCISES = [each for chapter in SOLUTIONS for each in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EXERCISES, ids=lambda each: each.number)


def path_of(asked):
    return SOLUTIONS[int(asked.number.partition(".")[0])]


def rows_of(asked, kind=""):
    return rows(path_of(asked), kind, asked.number)


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
def test_new_ranks_judge_every_row_as_ranks_that_stay_do(asked, attempts):
    for row in rows_of(asked):  # of an error it is chance which rank's is told
        assert at_home(attempts)(row, SEED)[0] is at_home()(row, SEED)[0], row
        assert not misjudged(row, at_home())


@pytest.mark.sweep(words="unusual right answers at 10 random seeds")
@BY_NUMBER
def test_an_unusual_right_answer_passes_at_any_seed(asked, attempts):
    judged = at_home(attempts)
    assert not [line for row in rows_of(asked, "right") for seed in seeds(10) if (line := misjudged(row, judged, seed))]


# In the notebook of a student who has the solutions' names, and whose answer stands in a module of its own.
CELL = """
import sys, types
answers = types.ModuleType("tools.answers")
answers.wrong = answers.right = lambda number, says: lambda function: function
answers.term = answers.example = lambda *row: None
sys.modules.update({{"tools": types.ModuleType("tools"), "tools.answers": answers}})
module = dict(globals())
def {function}(*arguments):  # or the solution itself would be judged
    raise RuntimeError("the answers' file cannot run in class")
exec(compile({text!r}, "answers.py", "exec"), module)
{function} = module{name}
"""


class VerdictsOnly(Grader):
    """Names no recorded mistakes, which takes as long as the verdict."""

    def known_cause(self, exercise, cells):
        return ""


@pytest.mark.sweep(words="wrong and right answers in class, at a random seed")
@BY_NUMBER
def test_a_class_gets_for_every_answer_what_check_gives_at_home(asked):
    path, (seed,) = path_of(asked), seeds(1)
    given = [{"source": cell.source, "name": cell.metadata.nbgrader.grade_id, "own": False}
             for cell in code_cells(path) if not cell.metadata.nbgrader.grade]

    def in_class(row, seed):
        first, bracket, place = row.name.partition("[")
        text = path.with_name("answers.py").read_text(encoding="utf-8")
        source = CELL.format(text=text, function=asked.function, name=f'["{first}"]{bracket}{place}')
        report = grader.report(asked, [*given, {"source": source, "name": "answer", "own": True}], seed)
        assert "cannot run in class" not in report.cause, row
        return report.verdict, None if row.kind == "wrong" else report.cause

    with VerdictsOnly("auto", Limits()) as grader:
        assert not [line for kind in ("wrong", "right") for row in rows_of(asked, kind)
                    if (line := misjudged(row, in_class, seed))]


@BY_NUMBER
def test_the_first_trial_is_the_example_at_every_seed(asked):
    assert len({repr(asked.trials(seed)[0]) for seed in (SEED, 5, 77)}) == 1


def test_messages_have_a_floor_wherever_they_are_the_exercise():
    for asked in EXERCISES:
        if isinstance(asked, CollectiveExercise | TensorExercise) and asked.operations != frozenset():
            several = [trial for trial in asked.trials(SEED) if trial.world_size > 1]
            if any(asked.bound(trial) for trial in several):  # else nothing is to be sent
                assert sum(asked.least(trial) > 0 for trial in several) >= 2, asked.number
