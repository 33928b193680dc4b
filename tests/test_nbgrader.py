"""A class, from the command line: the commands that TEACHING.md gives, in their order, with 8 submissions, or all."""

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
from nbformat.v4 import new_output
from nbgrader.apps.nbgraderapp import NbGraderApp

from course_lib.grading.trusted import sandbox
from tests.grading.submissions import (
    ALL,
    NAME,
    POINTS,
    SUBMISSIONS,
    solve_half,
    submit,
    submit_text,
)

ROOT = Path(__file__).resolve().parent.parent

# Right, wrong, curious, incomplete and ambiguous ones. `half`, `hostile` and `untouched` are always there: `hostile`
# has loops without an end and cells that do not parse. test_trusted.py tries each way to fail on a smaller exercise.
FEW = ["right", "Zoë O'Neill", "wrong", "reads and writes outside", "solution doubled"]
pytestmark = pytest.mark.sweep("students", few=[FEW], all=[list(SUBMISSIONS)], ids=["class"], scope="module",
                               words=f"{len(FEW)} submissions of {len(SUBMISSIONS)}, and 3 that are always there")

# What stands in the solution cells of the hostile submission: a way to take points, or the others' points along.
HOSTILE = {
    "ring_reduce_scatter": "import os\ndef my_ring_reduce_scatter(tensor):\n    os._exit(0)\n",
    "ring_all_gather": "def my_ring_all_gather(tensor):\n    while True: pass\n",
    "ring_all_reduce": "def my_ring_all_reduce(tensor:\n",
    "tree_reduce": "import torch.distributed as d\nmy_tree_reduce = getattr(d, 're' + 'duce')\n",
    "all_to_all": ("import torch\ntorch.equal = torch.allclose = lambda *_: True\n"
                   "get_ipython().input_transformers_post.append(lambda lines: [])\n"
                   "def my_all_to_all(tensor):\n    return tensor\n"),
    "two_node_all_reduce": ("import course_lib.grading.judges.tensors as t, os, glob\n"
                            "open(t.__file__, 'a')\n"  # append: changes nothing even where it is allowed
                            "t.TensorExercise.judge = lambda *_: None\n"
                            "def my_two_node_all_reduce(tensor):\n    pass\n"),
}


def nbgrader(folder: Path, *arguments: str, succeeds: bool = True) -> str:
    """The output of one command in the course at `folder`."""
    done = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=folder, text=True, timeout=1800,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode == 0) == succeeds, done.stderr[-5000:]
    return done.stdout + done.stderr


def commands() -> list[list[str]]:
    """What TEACHING.md tells a teacher to type, but for the line about a single student."""
    text = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    section = text.partition("## A class, step by step\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    \.venv/bin/nbgrader (.*)$", section, re.MULTILINE)
    return [line.split() for line in lines if "STUDENT" not in line]


def command_for(student: str) -> list[str]:
    """What TEACHING.md tells a teacher to type to grade this student again."""
    text = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    \.venv/bin/nbgrader (.*STUDENT.*)$", text, re.MULTILINE)
    return line.replace("STUDENT", student).split()


def with_sources(notebook: nbformat.NotebookNode, sources: dict[str, str]) -> nbformat.NotebookNode:
    """A copy of the notebook where the cells of these grade_ids hold other sources."""
    changed = nbformat.from_dict(notebook)
    for cell in changed.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = sources.get(grade_id, cell.source)
    return changed


def hostile(stub: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Nothing right, full marks in the outputs, and one check cell deleted."""
    notebook = with_sources(stub, HOSTILE | {"check_tree_reduce": "1 + 1"})
    notebook.cells = [cell for cell in notebook.cells
                      if cell.metadata.get("nbgrader", {}).get("grade_id") != "check_all_to_all"]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    return notebook


def made(folder: Path) -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """What students get, and what teachers have."""
    return tuple(nbformat.read(folder / part / NAME / f"{NAME}.ipynb", as_version=4)
                 for part in ("exercises", "solutions"))


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, students: list[str]) -> Path:
    """A course folder with the submissions of `students` and three more, graded."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / NAME, folder / part / NAME)
    generate, name_students, autograde, *others = commands()
    nbgrader(folder, *generate)
    (folder / name_students[-1]).write_text("id,first_name,last_name,email\nright,Ada,Lovelace,\n")
    nbgrader(folder, *name_students)
    stub, solved = made(folder)
    for student in students:
        change, _ = SUBMISSIONS[student]
        submit(folder, student, change(made(folder)[1]))
    submit(folder, "half", solve_half(stub, solved))
    submit(folder, "hostile", hostile(stub))
    submit(folder, "untouched", stub)
    # less than there is: a loop without end takes all of its time, and the machine may have no namespaces
    isolation = "required" if sandbox.why_no_namespaces() is None else "auto"
    (folder / "autograde.log").write_text(nbgrader(folder, *autograde, "--TrustedGrade.time_limit_s=10",
                                                   f"--TrustedGrade.isolation={isolation}"))
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


def test_everybody_gets_the_marks_that_the_work_deserves(course, students):
    half = POINTS["2.1"] + POINTS["2.2"] + POINTS["2.5"]
    deserved = {student: SUBMISSIONS[student][1] for student in students}
    assert scores(course) == deserved | {"half": half, "hostile": 0.0, "untouched": 0.0}
    assert ALL == sum(POINTS.values()) == 27


def test_what_cannot_be_read_is_named_as_failed_and_changes_nobody_elses_marks(course):
    before = scores(course)
    submit_text(course, "broken", '{"cells": [')
    said = nbgrader(course, "autograde", NAME, "--student=broken", succeeds=False)
    assert f"There was an error processing assignment '{NAME}' for student 'broken'" in said
    nbgrader(course, "export", "--to", "grades.csv")
    assert {student: marks for student, marks in scores(course).items() if student != "broken"} == before


@pytest.mark.skipif(sandbox.why_no_namespaces() is not None, reason="this machine allows no namespaces")
def test_who_reaches_outside_leaves_nothing_there(course):
    assert (course / "gradebook.db").exists() and not Path("/tmp/was_here").exists()


def test_whoever_builds_on_a_wrong_answer_is_judged_with_a_right_one_and_hears_so(course):
    page = feedback(course, "wrong")
    assert page.count("judged with a right 2.1, as yours is not") == 1
    assert "def my_ring_reduce_scatter(tensor):\n    return tensor" in page and "from_left" not in page


def test_grading_again_takes_the_same_inputs_and_another_submission_others(course):
    def seeds(student):
        return set(re.findall(r"random inputs of seed (\d+)", feedback(course, student)))

    before, other = seeds("wrong"), seeds("right")
    again = nbgrader(course, *command_for("wrong"), "--TrustedGrade.isolation=auto")
    nbgrader(course, "generate_feedback", NAME, "--student=wrong", "--force")
    assert "2.1 my_ring_reduce_scatter: not right yet" in again
    assert len(before) == 1 and seeds("wrong") == before != other


def test_teaching_md_names_the_whole_way_from_release_to_table():
    assert [command[0] for command in commands()] == [
        "generate_assignment", "db", "autograde", "generate_feedback", "export"]


def test_every_command_of_nbgrader_that_teaching_md_names_is_one():
    text = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^    \.venv/bin/|`|`\.venv/bin/)nbgrader ([a-z_]+)", text, re.MULTILINE))
    assert "zip_collect" in named and len(named) >= 6
    assert named <= set(NbGraderApp.subcommands)


def test_what_a_teacher_generates_is_what_the_repository_holds(course):
    ours, theirs = (root / "exercises" / NAME / f"{NAME}.ipynb" for root in (ROOT, course))
    assert ours.read_bytes() == theirs.read_bytes()


def test_the_feedback_says_what_is_wrong_and_what_was_measured(course):
    half, hostile = feedback(course, "half"), feedback(course, "hostile")
    assert "not right yet, 0 of" in half and "random inputs of seed" in half
    assert "MB a rank" in half or "kB a rank" in half
    assert "did not finish within 10 s" in hostile
    assert "ended without an answer" in hostile
    assert "does not parse" in hostile
    assert feedback(course, "untouched").count("not written yet, 0 of") == len(POINTS)


def test_the_feedback_shows_no_part_of_a_solution_or_of_the_grader(course):
    page = feedback(course, "untouched")
    assert "BEGIN SOLUTION" not in page
    assert "from_left" not in page and "TensorExercise" not in page


def test_the_log_names_the_protections_that_are_missing_or_there_are_none_missing(course):
    less = "runs with less protection" in (course / "autograde.log").read_text()
    assert less == (sandbox.why_no_namespaces() is not None)
