"""For the tests of the class grader: the way from the source of a solution cell to its marks."""

import inspect

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader import utils

from course_lib.grading.exercise import Exercise
from course_lib.grading.report import Report
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.preprocessor import cells_above, outputs
from course_lib.grading.trusted.worker import Limits
from tests.grading.toy_exercises import PassOn, honest

NAMESPACES = sandbox.why_no_namespaces() is None
BEST = "required" if NAMESPACES else "none"
MODES = [BEST, *[pytest.param("none", marks=pytest.mark.ci)] * NAMESPACES]  # `.ci/run` tries the weaker one, too
LIMITS = Limits(trial_s=20.0)
IMPATIENT = Limits(trial_s=2.0)
WRONG = "def pass_on(tensor):\n    return tensor\n"
CALLS_HONEST = "import torch\nimport torch.distributed as dist\n\n" + inspect.getsource(honest)
HONEST = CALLS_HONEST.replace("def honest", "def pass_on")  # the other is for cells that do something before
EXERCISE = PassOn()


def notebook(own: str, *above: str) -> tuple[NotebookNode, int]:
    """A notebook and the place of its check cell: `own` in the solution cell, `above` in cells before it."""
    cells = [*(new_code_cell(source) for source in above), new_code_cell(own), new_code_cell('check("0.1", pass_on)')]
    for cell, grade_id in zip(cells[-2:], ("pass_on", "check_pass_on")):
        is_check = grade_id.startswith("check")
        cell.metadata.nbgrader = {"grade": is_check, "solution": not is_check, "locked": is_check, "task": False,
                                  "grade_id": grade_id, "schema_version": 3} | ({"points": 2} if is_check else {})
    return new_notebook(cells=cells), len(cells) - 1


def points(report: Report) -> float:
    """What nbgrader itself reads from the outputs made for `report`."""
    nb, check = notebook("")
    nb.cells[check].outputs = outputs(report, "")
    return utils.determine_grade(nb.cells[check])[0]


class ClassOfStudents:
    """Graders for the tests of one module, each started when it is first needed."""

    def __init__(self) -> None:
        self.graders: dict[tuple[str, Limits], Grader] = {}

    def grade(self, own: str, *above: str, mode: str = BEST, limits: Limits = LIMITS,
              exercise: Exercise = EXERCISE) -> Report:
        """The report on a solution cell, `above` being the sources of other cells before it."""
        if (mode, limits) not in self.graders:
            self.graders[mode, limits] = Grader(mode, limits)
        return self.graders[mode, limits].report(exercise, cells_above(*notebook(own, *above)), seed=1)

    def close(self) -> None:
        for grader in self.graders.values():
            grader.close()
