"""Checks for the exercises: `check` for somebody alone in a notebook, `TrustedGrade` for a class under nbgrader.

An exercise has two sides, and a wall between them: on_rank/ has what runs beside the learner's function, and is all of
the grader that the class grader's sandbox shows; judges/ has trials, right answers and budgets.

In reading order. What an exercise is:
    exercise.py     a trial, the traffic of one, and Exercise: trials, reference, what was spent
    spent.py        one budget and what the run used of it; the judgement on a trial
    compare.py      the one comparison of answers, and words for what was given
    sketch.py       a few numbers by which an answer is known again
    recorded.py     hints and mistakes, as authors wrote them; wrong_answers.py: how they write mistakes
    on_rank/        runs, a module for each chapter
    examples.py     an exercise in a copy without judges
    judges/         the exercises, a package for each chapter; registry.py: all of them by number
Alone in a notebook:
    selfstudy.py    check(...); borrowed.py: whether it uses the course's own answers; explain.py: errors in its lines
    staying.py      the same for many answers, on ranks that stay
    report.py       its answer, which draws itself
    points.py       progress(): the best answers so far, and what is open
For marks:
    trusted/        TrustedGrade, the sandbox, the ranks in it
    marks/          a whole class: who is graded and who is not, tables, platforms; `make grade`
"""

import sys
from typing import Any

if "IPython" in sys.modules:  # perhaps a kernel, where runtime starts its server, and this before torch is imported
    import course_lib.runtime  # noqa: F401

__all__ = ["check", "progress"]


def __getattr__(name: str) -> Any:
    # Not imported above: it brings the judges, and this file is shown where they are not.
    if name == "check":
        from course_lib.grading.selfstudy import check

        return check
    if name == "progress":
        from course_lib.grading.points import progress

        return progress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
