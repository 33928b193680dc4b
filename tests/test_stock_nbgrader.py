"""The exercises in a course that has nothing of ours but the notebooks: nbgrader runs them and reads the outputs.

So an unwritten exercise must fail its check cell there, or it would get all its points.
"""

import csv
import os
import sys
from pathlib import Path

import nbformat
import pytest

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
    nbgrader(folder, "autograde", NAME, **own)
    nbgrader(folder, "export", "--to", "grades.csv", **own)
    return folder


@pytest.mark.ci
@pytest.mark.timeout(240)
def test_an_empty_submission_gets_nothing_a_right_one_everything_a_costly_one_half_and_each_hears_it(course):
    with open(course / "grades.csv", newline="") as file:
        scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    # 2.3 of the costly one calls its 2.1
    assert scores == {"empty": 0.0, "right": ALL, "costly": ALL - (POINTS["2.1"] + POINTS["2.3"]) / 2}
    graded = nbformat.read(course / "autograded" / "empty" / NAME / f"{NAME}.ipynb", as_version=4)
    errors = [output for cell in graded.cells if cell.cell_type == "code" for output in cell.outputs
              if output.output_type == "error"]
    assert len(errors) == len(POINTS)
    assert {error.ename for error in errors} == {"NotPassed"}
    assert all("not written yet, 0 of" in error.evalue for error in errors), errors
