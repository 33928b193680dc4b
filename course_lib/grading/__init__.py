"""Checks for the exercises: `check` for somebody alone in a notebook, `TrustedGrade` for a class under nbgrader.

Exercises stand elsewhere, a folder for each chapter; `python -m course_lib.grading --explain 6.2` says how one is
judged. An exercise has two sides, and a wall between them: what runs beside the learner's function is all of the grader
that the class grader's sandbox shows; trials, right answers and budgets are the judge's.

In reading order. What an exercise is:
    exercise.py     a trial, the traffic of one, and Exercise: trials, reference, what was spent
    spent.py        one budget and what the run used of it; the judgement on a trial
    compare.py      the one comparison of answers, words for what was given, sketches by which an answer is known again
    kinds.py        a number, a tensor, collectives; gradients.py: of a small model, of something that is cut
    on_rank.py      what their runs share on a rank
    chapters.py     where the folders are; recorded.py: hints and mistakes, as they stand there
    registry.py     all exercises by number; in a copy without judges their examples
Alone in a notebook:
    selfstudy.py    check(...): errors in the reader's lines
    names.py        what the reader's function uses: the course's own answers, values that class lacks
    staying.py      the same for many answers, on ranks that stay
    report.py       its answer, which draws itself; progress(): the best answers so far, and what is open
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
        from course_lib.grading.report import progress

        return progress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
