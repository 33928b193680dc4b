"""The tables of answers: what their reader refuses, what is said of a row that is misjudged, terms, mutants."""

import shutil
import sys
from pathlib import Path

import pytest

from course_lib.grading.report import Verdict
from tools import answers, mutants
from tools.solutions import SOLUTIONS, code_cells

FIRST = SOLUTIONS[1]


@pytest.fixture
def copied(tmp_path):
    """The notebook of the first chapter with all that stands beside it, in a folder of the test's."""
    return Path(shutil.copytree(FIRST.parent, tmp_path / FIRST.parent.name), FIRST.name)


@pytest.mark.parametrize("more, words", [
    ("term = lambda *row: None", "01_why_distribute, 1.1: 0 rows of the kind term, expected 2 or more"),
    ("example = lambda *row: None", "01_why_distribute, 1.1: 0 rows of the kind example, expected 1 or more"),
    ("wrong = lambda *row: print", "01_why_distribute, 1.1: 0 rows of the kind wrong, expected 3 or more"),
    ("right = lambda *row: print", "01_why_distribute, 1.1: 0 rows of the kind right, expected 2 or more"),
    ("MORE = [term('1.1', 'a term', 'no such code', '')]",
     "01_why_distribute, 1.1 term a term: 'no such code' is not in the solution's cell"),
    ("MORE = [term('1.1', 'a term', 'return', 'return ')] * 2",
     "01_why_distribute: two rows are named 1.1 term a term"),
])
def test_a_table_in_which_something_is_missing_or_twice_cannot_be_read(copied, more, words):
    file = copied.with_name("answers.py")
    head, line, rest = file.read_text(encoding="utf-8").partition(", right, term, wrong\n")
    file.write_text(f"{head}{line}{more}\n{rest}", encoding="utf-8")
    with pytest.raises(ValueError) as refused:
        answers.table(copied)
    assert str(refused.value) == words


@pytest.mark.parametrize("kind, verdict, cause, words", [
    ("right", Verdict.WRONG, "odd", "1.1 right a_name: refused at seed 7: odd"),
    ("example", Verdict.WRONG, "odd", "1.1 example a_name: refused at seed 7: odd"),
    ("solution", Verdict.COSTLY, "odd", "1.1 solution a_name: refused at seed 7: odd"),
    ("wrong", Verdict.CORRECT, None, "1.1 wrong a_name: correct at seed 7"),
    ("wrong", Verdict.NOT_WRITTEN, "", "1.1 wrong a_name: not written yet at seed 7"),
    ("wrong", Verdict.WRONG, "another", "1.1 wrong a_name: expected 'its sentence', is told 'another'"),
    ("term", Verdict.CORRECT, "", "1.1 term a_name: correct at seed 7"),
    ("right", Verdict.CORRECT, "", ""), ("example", Verdict.CORRECT, "", ""), ("term", Verdict.WRONG, "", ""),
    ("wrong", Verdict.WRONG, "trial: its sentence", ""), ("wrong", Verdict.COSTLY, None, ""),
])
def test_a_row_that_is_misjudged_is_named_with_the_seed(kind, verdict, cause, words):
    row = answers.Row("1.1", kind, "its sentence", name="a_name")
    assert answers.misjudged(row, lambda row, seed: (verdict, cause), 7) == words


def test_an_example_that_the_docstring_does_not_have_is_refused():
    row = answers.Row("1.1", "example", "", lambda inputs, found: ["9.9e9 parameters", "on"])
    assert answers.misjudged(row, answers.at_home()).endswith("the docstring does not say ['9.9e9 parameters']")


def test_mutants_need_cosmic_ray_and_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "cosmic_ray", None)
    monkeypatch.setitem(sys.modules, "cosmic_ray.plugins", None)
    with pytest.raises(SystemExit, match="pip install cosmic-ray"):
        mutants.operators()


def test_right_mutants_have_a_reason_and_change_a_line_of_the_solution(tmp_path):
    for path in SOLUTIONS.values():
        sources = "\n".join(cell.source for cell in code_cells(path))
        for number, lines in mutants.shown_right(path).items():
            for line in lines:
                assert line.partition("  ->  ")[0] in sources, f"{path.stem}, {number}"
    (tmp_path / "right_mutants.md").write_text("## 2.1\n\n      x + y  ->  x - y\n")
    with pytest.raises(ValueError, match="2.1: no reason above 'x . y"):
        mutants.shown_right(tmp_path / "chapter.ipynb")


def test_mutants_leave_statements_out_exchange_arguments_and_take_other_names():
    changed = list(mutants.edited("def f(a, b):\n    a += 1\n    return min(a, b)\n"))
    for line in ("    pass\n", "    a -= 1\n", "    a = 1\n", "min(b, a)", "min(a, a)", "min(b, b)"):
        assert any(line in text for text in changed), line
