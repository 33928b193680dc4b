"""For the tests of the class grader: an exercise small enough for a run in each test, and the way to its marks."""

import pytest
import torch
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader import utils

from course_lib.grading.exercise import Exercise, Trial
from course_lib.grading.judges.tensors import TensorExercise, whole_numbers
from course_lib.grading.report import Report
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.preprocessor import cells_above, outputs
from course_lib.grading.trusted.worker import Limits

NAMESPACES = sandbox.why_no_namespaces() is None
BEST = "required" if NAMESPACES else "none"
MODES = [BEST, *[pytest.param("none", marks=pytest.mark.ci)] * NAMESPACES]  # `.ci/run` tries the weaker one, too
LIMITS = Limits(trial_s=20.0)
IMPATIENT = Limits(trial_s=2.0)
WRONG = "def pass_on(tensor):\n    return tensor\n"

HONEST = """
import torch
import torch.distributed as dist

def pass_on(tensor):
    r, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (r + 1) % n)
    dist.recv(received, (r - 1) % n)
    sending.wait()
    return received
"""


class PassOn(TensorExercise):
    """Return what the left neighbour brought, having sent no more than one's own."""

    number = "0.1"
    function = "pass_on"
    points = 2
    budget = "M bytes"
    N = 1 << 15  # elements: 128 KiB

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [Trial([[whole_numbers(generator, self.N)] for _ in range(2)], "2 ranks")]

    def solve(self, inputs: list) -> list[torch.Tensor]:
        return [inputs[rank - 1][0] for rank in range(len(inputs))]

    def bound(self, trial: Trial) -> int:
        return 4 * self.N

    def least(self, trial: Trial) -> int:
        return 4 * self.N * trial.world_size


class PassOnSmall(PassOn):
    """Small enough that nobody could tell by its bytes which way it took."""

    number = "0.2"
    N = 3


EXERCISE = PassOn()
CALLS_HONEST = HONEST.replace("def pass_on", "def honest")  # for cells that do something and then answer rightly


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
        grader = self.graders[mode, limits]
        return grader.report(exercise, cells_above(*notebook(own, *above)), seed=1)

    def close(self) -> None:
        for grader in self.graders.values():
            grader.close()
