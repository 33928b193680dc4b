"""A class, from the command line: the commands that TEACHING.md gives, in their order, with four submissions."""

import csv
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from course_lib.grading import registry

ROOT = Path(__file__).resolve().parent.parent
NAME = "02_collectives"
POINTS = {exercise.number: exercise.points for exercise in registry.exercises_of(2)}

# What stands in the solution cells of the hostile submission: a way to take points, or the others' points along.
HOSTILE = {
    "ring_reduce_scatter": "import os\ndef my_ring_reduce_scatter(tensor):\n    os._exit(0)\n",
    "ring_all_gather": "def my_ring_all_gather(tensor):\n    while True: pass\n",
    "ring_all_reduce": "def my_ring_all_reduce(tensor:\n",
    "tree_reduce": "import torch.distributed as d\nmy_tree_reduce = getattr(d, 're' + 'duce')\n",
    "all_to_all": ("import torch\ntorch.equal = torch.allclose = lambda *_: True\n"
                   "get_ipython().input_transformers_post.append(lambda lines: [])\n"
                   "def my_all_to_all(tensor):\n    return tensor\n"),
    "two_node_all_reduce": ("import course_lib.grading.tensors as t, os, glob\n"
                            "open(t.__file__, 'a')\n"  # append: changes nothing even where it is allowed
                            "t.TensorExercise.judge = lambda *_: None\n"
                            "def my_two_node_all_reduce(tensor):\n    pass\n"),
}


def nbgrader(folder: Path, *arguments: str) -> str:
    """The output of one command in the course at `folder`."""
    done = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=folder, text=True, timeout=300,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout + done.stderr


def commands() -> list[list[str]]:
    """What TEACHING.md tells a teacher to type, but for the line about a single student."""
    text = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    section = text.partition("## A class, step by step\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    \.venv/bin/nbgrader (.*)$", section, re.MULTILINE)
    return [line.split() for line in lines if "STUDENT" not in line]


def submit(course: Path, student: str, notebook: nbformat.NotebookNode) -> None:
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / f"{NAME}.ipynb")


def with_sources(notebook: nbformat.NotebookNode, sources: dict[str, str]) -> nbformat.NotebookNode:
    """A copy of the notebook where the cells of these grade_ids hold other sources."""
    changed = nbformat.from_dict(notebook)
    for cell in changed.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = sources.get(grade_id, cell.source)
    return changed


def half_done(stub: nbformat.NotebookNode, solved: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """2.1, 2.2 and 2.5 are right, with warnings and experiments around; 2.3 is wrong, the others are stubs."""
    by_id = {cell.metadata.nbgrader.grade_id: cell.source for cell in solved.cells if "nbgrader" in cell.metadata}
    noisy = by_id["ring_reduce_scatter"].replace(
        "    n, r =",
        "    import sys, warnings\n    warnings.warn('old')\n    print('!', file=sys.stderr)\n    n, r =", 1)
    notebook = with_sources(stub, {
        "ring_reduce_scatter": noisy, "ring_all_gather": by_id["ring_all_gather"], "all_to_all": by_id["all_to_all"],
        "ring_all_reduce": "def my_ring_all_reduce(tensor):\n    return tensor\n"})
    notebook.cells.insert(2, new_code_cell("%matplotlib inline\n1 / 0"))
    return notebook


def hostile(stub: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Nothing right, full marks in the outputs, and one check cell deleted."""
    notebook = with_sources(stub, HOSTILE | {"check_tree_reduce": "1 + 1"})
    notebook.cells = [cell for cell in notebook.cells
                      if cell.metadata.get("nbgrader", {}).get("grade_id") != "check_all_to_all"]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    return notebook


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder with four submissions, graded."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / NAME, folder / part / NAME)
    generate, autograde, *others = commands()
    nbgrader(folder, *generate)
    stub = nbformat.read(folder / "exercises" / NAME / f"{NAME}.ipynb", as_version=4)
    solved = nbformat.read(folder / "solutions" / NAME / f"{NAME}.ipynb", as_version=4)
    submit(folder, "half", half_done(stub, solved))
    submit(folder, "hostile", hostile(stub))
    submit(folder, "perfect", solved)  # after the hostile one
    submit(folder, "untouched", stub)
    (folder / "autograde.log").write_text(nbgrader(folder, *autograde, "--TrustedGrade.time_limit_s=6"))
    for command in others:
        nbgrader(folder, *command)
    return folder


def scores(course: Path) -> dict[str, float]:
    with open(course / "grades.csv", newline="") as file:
        return {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}


def feedback(course: Path, student: str) -> str:
    """The feedback page as text."""
    page = (course / "feedback" / student / NAME / f"{NAME}.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_the_table_has_full_marks_for_the_solution_half_for_half_and_nothing_for_the_rest(course):
    half = POINTS["2.1"] + POINTS["2.2"] + POINTS["2.5"]
    assert scores(course) == {"perfect": sum(POINTS.values()), "half": half, "hostile": 0.0, "untouched": 0.0}


def test_teaching_md_names_the_whole_way_from_release_to_table():
    assert [command[0] for command in commands()] == ["generate_assignment", "autograde", "generate_feedback", "export"]


def test_what_a_teacher_generates_is_what_the_repository_holds(course):
    ours, theirs = (root / "exercises" / NAME / f"{NAME}.ipynb" for root in (ROOT, course))
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_feedback_says_what_is_wrong_and_what_was_measured(course):
    half, hostile = feedback(course, "half"), feedback(course, "hostile")
    assert "not right yet, 0 of" in half and "random inputs of seed" in half
    assert "MiB a rank" in half or "KiB a rank" in half
    assert "did not finish within 6 s" in hostile
    assert "ended without an answer" in hostile
    assert "does not parse" in hostile
    assert feedback(course, "untouched").count("not written yet, 0 of") == len(POINTS)


def test_the_feedback_shows_no_part_of_a_solution_or_of_the_grader(course):
    page = feedback(course, "untouched")
    assert "BEGIN SOLUTION" not in page
    assert "next_one" not in page and "TensorExercise" not in page


def test_the_log_names_the_protections_that_are_missing_or_there_are_none_missing(course):
    from course_lib.grading import sandbox
    less = "runs with less protection" in (course / "autograde.log").read_text()
    assert less == (sandbox.why_no_namespaces() is not None)
