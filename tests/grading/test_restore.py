"""Cells that were doubled, deleted, renamed or stripped of their marks are as they were given out; nothing is lost."""

import nbformat
import pytest
from nbgrader import utils

from course_lib.grading.trusted.notebooks import Original, functions_of, restore
from tests.grading.submissions import OWN, SUBMISSIONS, WRONG, cell_of, notebook_of, of_student


def originals():
    return [Original(cell.metadata.nbgrader.grade_id, cell.cell_type, cell.source, utils.is_grade(cell),
                     utils.is_solution(cell), utils.is_locked(cell), cell.metadata.nbgrader.get("points", 0.0))
            for cell in notebook_of("exercises").cells if "nbgrader" in cell.metadata]


def ids(notebook):
    return [cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata]


GIVEN = [each.grade_id for each in originals()]


@pytest.mark.parametrize("student", SUBMISSIONS)
def test_every_cell_that_was_given_out_is_there_once_in_its_order_but_for_a_deleted_solution(student):
    notebook = of_student(student)
    restore(notebook.cells, originals())
    deleted = [OWN] if student.startswith("no solution") else []
    assert ids(notebook) == [grade_id for grade_id in GIVEN if grade_id not in deleted]
    nbformat.validate(nbformat.v4.upgrade(notebook, notebook.nbformat, notebook.nbformat_minor))
    if not deleted and student not in ("wrong", "solution doubled", "does not parse"):
        assert "def my_ring_reduce_scatter" in cell_of(notebook, OWN).source


def test_what_nobody_touched_stays_and_nothing_is_said():
    notebook, before = notebook_of("exercises"), notebook_of("exercises")
    for cell in before.cells:
        for name in ("cell_type", "checksum"):  # which nbgrader itself writes again
            cell.metadata.get("nbgrader", {}).pop(name, None)
    assert restore(notebook.cells, originals()) == [] and notebook == before


def test_of_two_solutions_the_lower_one_is_graded_and_the_other_is_a_cell_like_any():
    notebook = of_student("solution doubled")
    right = cell_of(notebook_of("solutions"), OWN).source
    restore(notebook.cells, originals())
    assert cell_of(notebook, OWN).source == right
    plain = [cell.source for cell in notebook.cells if "nbgrader" not in cell.metadata]
    assert plain.count(WRONG) == 1


def test_what_was_done_is_said():
    notebook = of_student("renamed ids")
    done = "\n".join(restore(notebook.cells, originals()))
    assert f"lost the marks of 'my_{OWN}': nobody gave such a cell out" in done and f"marks of '{OWN}' again" in done


ODD_MARKS = [None, [], "x", 3, {"grade_id": ["x"]}, {"grade_id": {}}, {"grade_id": None}, {"grade_id": "x" * 1_000_000},
             {"grade_id": OWN, "schema_version": 99, "points": "NaN", "grade": "yes", "solution": [], "locked": None}]


@pytest.mark.parametrize("marks", ODD_MARKS, ids=lambda marks: str(marks)[:20])
def test_whatever_stands_in_the_place_of_a_cells_marks_they_are_as_they_were_given_out(marks):
    notebook = of_student("right")
    cell_of(notebook, OWN).metadata["nbgrader"] = marks
    assert len("".join(restore(notebook.cells, originals()))) < 500
    assert ids(notebook) == GIVEN and cell_of(notebook, OWN).metadata.nbgrader == originals()[GIVEN.index(OWN)].marks


@pytest.mark.parametrize("source, names", [
    ("def f(x):\n    return x\n\ndef g(): pass", {"f", "g"}), ("x = 1", set()), ("def f(x:\n    pass", {"f"})])
def test_a_cell_is_known_by_the_functions_that_it_defines(source, names):
    assert functions_of(source) == names
