"""exercises/ is what solutions/ generates, and unwritten; what the graders know of solutions/ is what stands there."""

import ast
import importlib
import json

import nbformat
import pytest

from course_lib.grading.registry import exercise, exercises_of
from tools import answers, exercises, notebooks
from tools.solutions import ROOT, SOLUTIONS, code_cells, hints, names_of


def released(path):
    """The exercise notebook of a solution's."""
    return ROOT / "exercises" / path.relative_to(ROOT / "solutions")


def test_exercises_are_what_the_solutions_generate_byte_for_byte(tmp_path):
    exercises.generate(tmp_path)
    fresh, committed = ({path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
                         if path.is_file() and ".ipynb_checkpoints" not in path.parts}
                        for folder in (tmp_path, ROOT / "exercises"))
    assert fresh.keys() == committed.keys()
    assert fresh == committed, "run make exercises"


def test_no_solution_and_no_wrong_answer_leaks_into_the_exercises():
    files = [path for path in (ROOT / "exercises").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".ipynb"}
    for path in SOLUTIONS.values():
        text = released(path).read_text(encoding="utf-8")
        assert "SOLUTION" not in text
        for cell in code_cells(path):
            for line in solution_lines(cell.source):
                assert line not in text


def solution_lines(source):
    """The lines between the marks that are long enough to be nobody else's."""
    _, _, solution = source.partition("### BEGIN SOLUTION")
    return [line.strip() for line in solution.partition("### END SOLUTION")[0].splitlines() if len(line.strip()) > 12]


@pytest.mark.parametrize("path", SOLUTIONS.values(), ids=lambda path: path.stem)
def test_a_check_cell_names_its_exercise_its_function_and_its_points(path):
    solved, checked = [], []
    for cell in code_cells(path):
        grader = cell.metadata.nbgrader
        assert grader.schema_version == 3 and grader.locked != grader.solution
        if grader.solution:
            solved.append(grader.grade_id)
            assert len(solution_lines(cell.source)) >= 1
        if grader.grade:
            (call,) = [node.value for node in ast.parse(cell.source).body]
            number, function = call.args[0].value, call.args[1].id
            assert call.func.id == "check"
            assert (function, grader.points) == (exercise(number).function, exercise(number).points)
            assert grader.grade_id == f"check_{solved[-1]}"
            checked.append(number)
    assert len(solved) == len(checked) and checked == [each.number for each in exercises_of(int(path.name[:2]))]


@pytest.mark.parametrize("path", SOLUTIONS.values(), ids=lambda path: path.stem)
def test_solutions_are_as_make_write_back_leaves_them_without_outputs_and_redefine_no_public_name(path):
    # Outputs would repeat here what the tests run anyway, and are not in the exercises in any case.
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.outputs or cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    ids = [cell.id for cell in notebook.cells]
    notebooks.normalise(notebook)
    assert [cell.id for cell in notebook.cells] == ids
    public = set(importlib.import_module(f"course_lib.{path.stem[3:]}").__all__)
    assert not public & names_of(path).keys() | public & {each.function for each in exercises_of(int(path.name[:2]))}


@pytest.mark.parametrize("path", SOLUTIONS.values(), ids=lambda path: path.stem)
def test_what_is_recorded_of_a_chapter_is_what_stands_beside_its_solutions(path):
    file = path.with_name("recorded.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["hints"] == hints(path) and list(hints(path)) == [
        each.number for each in exercises_of(int(path.name[:2]))], "run make exercises"
    written = {(row.number, row.name, row.says) for row in answers.rows(path, "wrong")}
    told = {(number, each["name"], each["says"]) for number, lines in found["mistakes"].items() for each in lines}
    assert told <= written, "run make exercises"
    assert file.read_text(encoding="utf-8") == answers.text_of(found)


@pytest.mark.parametrize("path", SOLUTIONS.values(), ids=lambda path: path.stem)
def test_an_untouched_notebook_runs_to_its_end_and_says_not_written_yet(path):
    names, told = {"__name__": path.stem}, []
    for cell in code_cells(released(path)):  # in a kernel in test_nbgrader.py
        if cell.metadata.nbgrader.grade:
            told.append(repr(eval(cell.source, names)))
        else:
            exec(compile(cell.source, f"{path.stem}-{cell.id}", "exec"), names)
    assert len(told) == len(exercises_of(int(path.name[:2])))
    assert all("not written yet, 0 of" in text for text in told)
