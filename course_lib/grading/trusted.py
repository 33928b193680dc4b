"""TrustedGrade: marks for a class. An nbgrader preprocessor that takes the place of `Execute` in `nbgrader autograde`.

It starts no kernel and executes no student code in this process. For each check cell, `check("2.1", my_function)` as
the teacher wrote it, the notebook's code above goes to isolated ranks; their tensors are judged here, and the check
cell gets outputs from which nbgrader itself reads the points: none for an error, all otherwise. Outputs that came with
the submission are removed first. TEACHING.md says what this protects and what it does not.
"""

import ast
import os
import secrets
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Enum, Float, Integer

from course_lib.grading import registry, sandbox
from course_lib.grading.exercise import Exercise, Trial
from course_lib.grading.isolated import GraderBroken, IsolatedWorker, Limits
from course_lib.grading.replies import Failed
from course_lib.grading.report import Report, Verdict
from course_lib.grading.spent import Judgement


class TrustedGrade(NbGraderPreprocessor):
    """Grade every check cell on isolated ranks."""

    isolation = Enum(("auto", "required", "none"), "auto", help=(
        '"required": namespaces, or no grades at all. "auto": namespaces where there are any; the feedback and the log '
        'say what is missing. "none": plain processes.')).tag(config=True)
    seed = Integer(None, allow_none=True, help=(
        "Of the random inputs; a fresh one for each notebook when None. The feedback shows it, to repeat a run.")
    ).tag(config=True)
    time_limit_s = Float(10.0, help="Seconds that one trial of an exercise may take.").tag(config=True)
    memory_limit_mb = Integer(2048, help="MiB that one rank may use on top of torch itself.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        checks = [index for index, cell in enumerate(nb.cells) if is_check(cell)]
        asked = {index: exercise_of(nb.cells[index].source) for index in checks}
        seed = secrets.randbits(32) if self.seed is None else self.seed
        with Grader(self.isolation, self.limits(), list(asked.values())) as grader:
            for line in grader.isolation.missing:
                self.log.warning("TrustedGrade runs with less protection: %s", line)
            for index, exercise in asked.items():
                report = grader.report(exercise, cells_above(nb, index), seed)
                self.log.info("%s", repr(report).partition("\n")[0])
                if grader.broken:
                    self.log.error("Exercise %s could not be run and got no points: %s", exercise.number, grader.broken)
                nb.cells[index].outputs = [output(report, footnotes(seed, grader.isolation))]
        return nb, resources

    def limits(self) -> Limits:
        return Limits(trial_s=self.time_limit_s, memory_bytes=self.memory_limit_mb << 20,
                      cpu_s=max(2, round(2 * self.time_limit_s)))


def is_check(cell: NotebookNode) -> bool:
    """Whether the points of this cell come from running it; the others are marked by hand."""
    return cell.cell_type == "code" and utils.is_grade(cell) and not utils.is_solution(cell)


def exercise_of(source: str) -> Exercise:
    """The exercise that a check cell, `check("2.1", my_function)`, asks for. ValueError where it is no such call.

    An error, not a mark: a check cell comes from the teacher, and without outputs it would get all its points.
    """
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
             and isinstance(node.func, ast.Name) and node.func.id == "check"]
    match calls:
        case [ast.Call(args=[ast.Constant(value=str(number)), ast.Name(id=function)])]:
            exercise = registry.exercise(number)
            if function == exercise.function:
                return exercise
    raise ValueError(f'a check cell holds {source[:200]!r}: expected one call such as check("2.1", my_function), '
                     "with the exercise's own function")


def cells_above(nb: NotebookNode, check: int) -> list[dict[str, Any]]:
    """The code above the check cell `check`; the solution cells since the check before it are its own."""
    before = max((index for index in range(check) if is_check(nb.cells[index])), default=-1)
    cells = []
    for index, cell in enumerate(nb.cells[:check]):
        if cell.cell_type == "code" and not is_check(cell):
            name = cell.metadata.get("nbgrader", {}).get("grade_id") or f"cell {index + 1}"
            cells.append({"source": cell.source, "name": str(name), "own": index > before and utils.is_solution(cell)})
    return cells


class Grader:
    """Reports on one notebook's exercises. `broken`: what went wrong on our side in the last one, else None."""

    def __init__(self, isolation: str, limits: Limits, exercises: list[Exercise]) -> None:
        self.isolation = sandbox.choose(isolation)
        self.limits = limits
        self.exercises = exercises
        self.broken: str | None = None
        self._worker: IsolatedWorker | None = None

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._worker:
            self._worker.close()
            self._worker = None

    def worker(self) -> IsolatedWorker:
        """In namespaces one for the whole notebook: no rank can reach it. Otherwise a new one for each exercise."""
        if self._worker and not self.isolation.separate:
            self.close()
        if not self._worker:
            # nbgrader has changed to the course's folder, where gradebook and submissions lie.
            worker = IsolatedWorker(self.isolation, self.limits, self.exercises, hidden=(os.getcwd(),))
            self._worker = worker.__enter__()
        return self._worker

    def report(self, exercise: Exercise, cells: list[dict[str, Any]], seed: int) -> Report:
        verdict, cause, figures = Verdict.WRONG, "", []
        for _ in range(2):  # the second time in a new worker, in case that the first one was not well
            self.broken = None
            try:
                verdict, cause, figures = self.outcome(exercise, cells, seed)
                break
            except GraderBroken as error:
                self.broken = str(error)
                cause = "the grader could not run this; your teacher sees why"
                self.close()
        return Report(exercise.number, exercise.function, verdict, exercise.points, exercise.budget,
                      "\n".join(figures), cause)

    def outcome(self, exercise: Exercise, cells: list[dict[str, Any]], seed: int) -> tuple[Verdict, str, list[str]]:
        """Verdict, cause and figures: all trials up to the first that fails, of which alone the figures are then."""
        worker = self.worker()
        figures: list[str] = []
        label = ""
        try:
            worker.prepare(exercise, cells)
            for trial in exercise.trials(seed):
                label = f"{trial.label}: "
                answers, traffic = worker.trial(trial)
                judged = self.judged(exercise, trial, answers, traffic)
                measured = list(filter(None, [judged.figures(believed=False)]))  # what the ranks claim proves nothing
                if judged.cause:
                    return Verdict.WRONG, judged.cause, measured
                figures += measured
        except Failed as failure:
            if failure.kind == "not written":
                return Verdict.NOT_WRITTEN, "" if str(failure).endswith(": not written yet") else str(failure), []
            return Verdict.WRONG, f"{label}{failure}", []
        return Verdict.CORRECT, "", figures

    def judged(self, exercise: Exercise, trial: Trial, *answers_traffic: Any) -> Judgement:
        """What the exercise says of the answers, which may be of a form that it did not think of."""
        try:
            return exercise.judge(trial, *answers_traffic)
        except Exception as error:
            self.broken = f"judge of exercise {exercise.number} raised {type(error).__name__}: {error}"
            return Judgement(trial.label, "the answers are not of the form that was asked")


def footnotes(seed: int, isolation: sandbox.Isolation) -> str:
    lines = [f"random inputs of seed {seed}"]
    return "\n".join(lines + [f"graded with less protection: {line}" for line in isolation.missing])


def output(report: Report, notes: str) -> NotebookNode:
    """From this nbgrader reads the points: an error gives none, printed text all of them."""
    text = printable(f"{report!r}\n  ({notes})\n")
    if report.passed:
        return new_output("stream", name="stdout", text=text)
    return new_output("error", ename=report.verdict.value[0], evalue=printable(report.cause),
                      traceback=text.splitlines())


def printable(text: str) -> str:
    """Without control characters: parts of it come from a student's process."""
    return "".join(char for char in text if char.isprintable() or char == "\n")
