"""Checks for the exercises: `check` for somebody alone in a notebook, `TrustedGrade` for a class under nbgrader.

In reading order. What an exercise is:
    exercise.py     a trial, the traffic of one, and Exercise: trials, reference, likely mistakes, what was spent
    spent.py        one budget and what the run used of it; the judgement on a trial
    compare.py      the one comparison of answers, and words for what was given
    numbers.py      exercises whose answer is a number
    tensors.py      exercises whose answer is a tensor, made by messages
    calls.py        exercises that may call collectives
    chapters/       the exercises, a module or package a chapter; models.py is the small model that they share
    registry.py     all of them by number; wrong_answers.py: how a chapter records wrong ones
Alone in a notebook:
    selfstudy.py    check(...)
    report.py       its answer, which draws itself
For marks:
    trusted.py      TrustedGrade, in nbgrader's process
    isolated.py     starts a worker, asks it for answers and traffic; counters.py, replies.py, failures.py, frames.py
    isolated_worker.py, isolated_rank.py, student_code.py    what runs over there
    sandbox.py, privileges.py                                what it is kept from
"""

from typing import Any

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    # Not imported above: it brings course_lib.runtime, and graders need only the exercises.
    if name == "check":
        from course_lib.grading.selfstudy import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
