"""Recorded answers at many seeds, at home and in class; mutants; the terms of a text."""

import shutil
import sys
from pathlib import Path

import pytest

from course_lib.grading.report import Verdict
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.worker import Limits
from tools import mutants, terms, verdicts
from tools.solutions import SOLUTIONS, code_cells

FIRST = SOLUTIONS[1]
ONLY_AT_HOME = """
import course_lib.grading.judges
from tools.answers import right
AS_IT_IS = right("1.1", "nothing")(lambda *asked: my_training_bytes(*asked))
"""


def test_answers_are_judged_at_home_and_in_class_alike():
    home = list(verdicts.judged_wrongly(FIRST, verdicts.at_home, range(2), only="1.1"))
    with Grader("auto", Limits(trial_s=60.0)) as grader:
        in_class = list(verdicts.judged_wrongly(FIRST, verdicts.in_class(FIRST, grader), range(3, 4), only="1.1"))
    assert len(home) == 1 and home == in_class and "0 of " in home[0] and "wrong ones pass" in home[0]


def test_answers_that_cannot_run_in_class_are_not_taken_for_the_solution(tmp_path):
    path = Path(shutil.copy(FIRST, tmp_path))
    path.with_name("right_answers.py").write_text(ONLY_AT_HOME)
    path.with_name("wrong_answers.py").touch()
    with Grader("auto", Limits(trial_s=60.0)) as grader:
        with pytest.raises(RuntimeError, match="cannot run in class: Mod"):
            list(verdicts.judged_wrongly(path, verdicts.in_class(path, grader), range(1), only="1.1"))


def test_an_answer_that_is_judged_wrongly_is_named_with_its_seeds():
    def upside_down(name, answer, seed):
        verdict, cause = verdicts.at_home(name, answer, seed)
        return (Verdict.WRONG, "odd") if verdict is Verdict.CORRECT else (Verdict.CORRECT, cause)

    *lines, counts = verdicts.judged_wrongly(FIRST, upside_down, range(2), only="1.1")
    assert any(": refused at 2 of 2 seeds, first 0: odd" in line for line in lines)
    assert any(": passes at 2 of 2 seeds, first 0" in line for line in lines)
    assert len(lines) == sum(int(word) for word in counts.split() if word.isdigit()) // 2


def test_a_term_that_is_not_in_the_solution_is_an_error():
    with pytest.raises(ValueError, match="1.1, a term: 'no such code' is not in the solution's cell"):
        terms.left_out(FIRST, terms.term("1.1", "a term", "no such code", ""))


def test_the_page_for_teachers_has_the_terms_of_all_chapters():
    def beginnings(page):
        return sorted(line.rpartition(" | ")[0] for line in page.splitlines() if line.startswith(("## ", "| ")))

    every = [(left.number, left.words, "") for path in SOLUTIONS.values() for left in terms.terms(path)]
    page = terms.PAGE.read_text(encoding="utf-8")
    assert beginnings(page) == beginnings(terms.text_of(every)), "run python -m tools.terms --write"


def test_mutants_need_cosmic_ray_and_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cosmic_ray", None)
    monkeypatch.setitem(sys.modules, "cosmic_ray.mutating", None)
    with pytest.raises(SystemExit, match="pip install cosmic-ray"):
        list(mutants.mutants("### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n"))


def test_right_mutants_have_a_reason_and_change_a_line_of_the_solution():
    for path in SOLUTIONS.values():
        sources = "\n".join(cell.source for cell in code_cells(path))
        for number, lines in mutants.shown_right(path).items():
            for line in lines:
                old = line.partition("  ->  ")[0]
                assert old in sources, f"{path.stem}, {number}: no line {old!r}"


def test_a_mutant_without_a_reason_is_no_right_answer(tmp_path):
    (tmp_path / "right_mutants.md").write_text("## 2.1\n\n      x + y  ->  x - y\n")
    with pytest.raises(ValueError, match="2.1: no reason above 'x . y"):
        mutants.shown_right(tmp_path / "chapter.ipynb")


def test_mutants_leave_statements_out_exchange_arguments_and_take_other_names():
    changed = list(mutants.edited("def f(a, b):\n    a += 1\n    return min(a, b)\n"))
    for line in ("    pass\n", "    a -= 1\n", "    a = 1\n", "min(b, a)", "min(a, a)", "min(b, b)"):
        assert any(line in text for text in changed), line
