"""The exercises in a course that has nothing of ours but the notebooks: nbgrader runs them and reads the outputs.

So an unwritten exercise must fail its check cell there, or it would get all its points.
"""

import csv
import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from course_lib.grading.trusted.preprocessor import SaveMarks
from tests.grading.courses import ROOT, nbgrader
from tests.grading.submissions import ALL, NAME, POINTS, cell_of, submit

# Kernels are reached through files: beside other tests' ranks a port may be taken before a kernel binds it.
CONFIG = """c = get_config()
c.CourseDirectory.course_id = "stock"
c.Execute.timeout = 240
c.Execute.kernel_manager_class = "tools.harness.kernels.AsyncKernelManagerByFiles"
"""
COSTLY = '''def my_ring_reduce_scatter(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    total, travelling = tensor.clone(), tensor
    for _ in range(n - 1):  # whole tensors go around
        travelling = exchange(travelling, (r + 1) % n, torch.empty_like(tensor), (r - 1) % n)
        total += travelling
    return total.chunk(n)[r].clone()
'''

# At home's limit, made shorter for this test.
ENDLESS = """from course_lib.grading import selfstudy
selfstudy.TIME_LIMIT_S = 1.0

def my_ring_reduce_scatter(tensor):
    while True:
        pass
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under nbgrader's own configuration: one empty submission, one right one, one right one that sends too much."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "nbgrader_config.py").write_text(CONFIG)
    solved = nbformat.read(ROOT / "solutions" / NAME / f"{NAME}.ipynb", as_version=4)
    source = folder / "source" / NAME
    source.mkdir(parents=True)
    nbformat.write(solved, source / f"{NAME}.ipynb")
    own = {"JUPYTER_CONFIG_DIR": str(folder / "none"),
           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    nbgrader(folder, "generate_assignment", NAME, **own)
    submit(folder, "empty", nbformat.read(folder / "release" / NAME / f"{NAME}.ipynb", as_version=4))
    submit(folder, "right", solved)
    cell_of(solved, "ring_reduce_scatter").source = COSTLY
    submit(folder, "costly", solved)
    cell_of(solved, "ring_reduce_scatter").source = ENDLESS
    submit(folder, "endless", solved)
    nbgrader(folder, "autograde", NAME, **own)
    nbgrader(folder, "export", "--to", "grades.csv", **own)
    return folder


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_an_empty_submission_gets_nothing_a_right_one_everything_a_costly_one_half_and_each_hears_it(course):
    with open(course / "grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    # 2.3 of the costly one calls its 2.1
    without = ALL - POINTS["2.1"] - POINTS["2.3"]
    assert scores == {"empty": 0.0, "right": ALL, "costly": (ALL + without) / 2, "endless": without}
    graded = nbformat.read(course / "autograded" / "empty" / NAME / f"{NAME}.ipynb", as_version=4)
    errors = [output for cell in graded.cells if cell.cell_type == "code" for output in cell.outputs
              if output.output_type == "error"]
    assert len(errors) == len(POINTS)
    assert {error.ename for error in errors} == {"NotPassed"}
    assert all("not written yet, 0 of" in error.evalue for error in errors), errors


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_what_only_ran_out_of_time_there_is_open_where_our_own_step_saves_the_marks(course):
    db_url = f"sqlite:///{course / 'gradebook.db'}"
    names = {"notebook": NAME, "assignment": NAME, "student": "endless", "db_url": db_url}
    graded = nbformat.read(course / "autograded" / "endless" / NAME / f"{NAME}.ipynb", as_version=4)
    SaveMarks().preprocess(graded, {"nbgrader": names})
    with Gradebook(db_url) as gradebook:
        grades = gradebook.find_submission_notebook(NAME, NAME, "endless").grades
        assert {each.name for each in grades if each.needs_manual_grade and each.auto_score is None} == {
            "check_ring_reduce_scatter", "check_ring_all_reduce"}
        assert gradebook.find_submission(NAME, "endless").score == ALL - POINTS["2.1"] - POINTS["2.3"]
