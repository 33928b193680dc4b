"""Every check decides: a solution without what its text stresses is refused."""

import pytest

from course_lib.grading.exercise import SEED
from course_lib.grading.registry import exercises_of
from tests.sweep import some_of_each
from tools.solutions import SOLUTIONS
from tools.terms import deciding, terms

EXERCISES = [each for chapter in SOLUTIONS for each in exercises_of(chapter)]
TERMS = [(path, left) for path in SOLUTIONS.values() for left in terms(path)]


@pytest.mark.parametrize("asked", EXERCISES, ids=lambda each: each.number)
def test_at_least_two_stressed_terms_are_recorded(asked):
    assert sum(left.number == asked.number for _, left in TERMS) >= 2


@pytest.mark.sweep("term", few=some_of_each(TERMS, 1, lambda term: term[1].number), all=TERMS,
                   ids=lambda term: f"{term[1].number}-{term[1].words}",
                   words=f"1 stressed term of each exercise, of {len(TERMS)}")
def test_a_solution_without_what_its_text_stresses_is_refused(term):
    path, left = term
    assert deciding(path, left, SEED)
