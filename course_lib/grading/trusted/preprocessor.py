"""TrustedGrade: marks for a class. An nbgrader preprocessor that takes the place of `Execute` in `nbgrader autograde`.

It starts no kernel and executes no student code in this process. For each check cell, `check("2.1", my_function)` as
the teacher wrote it, the notebook's code above goes to isolated ranks; their tensors are judged here, and the check
cell gets outputs from which nbgrader itself reads the points. Outputs that came with the submission are removed first.
docs/teaching/isolation.md says what this protects and what it does not.
"""

import ast
import hashlib
import hmac
import re
import secrets
from dataclasses import replace
from pathlib import Path

import nbformat
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader import utils
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor, SaveAutoGrades
from traitlets import Enum, Float, Integer

from course_lib.grading import registry
from course_lib.grading.exercise import TIME_LIMIT_S, Exercise
from course_lib.grading.marks.record import ExerciseMark, Record, digest_of, key_of, put_record
from course_lib.grading.report import OVER_BUDGET, Report, Verdict
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.grader import Cells, Grader
from course_lib.grading.trusted.notebooks import RESTORED, is_check
from course_lib.grading.trusted.worker import NUM_CORES, Limits


class SaveMarks(SaveAutoGrades):
    """nbgrader's own, but for what was not judged: no points, and "needs manual grade" until a teacher has looked."""

    def _add_score(self, cell: NotebookNode, resources: ResourcesDict) -> None:
        super()._add_score(cell, resources)
        if is_open(cell):
            grade = self.gradebook.find_grade(
                cell.metadata.nbgrader.grade_id, self.notebook_id, self.assignment_id, self.student_id)
            grade.auto_score, grade.needs_manual_grade = None, True
            self.gradebook.db.commit()


def is_open(cell: NotebookNode) -> bool:
    """Whether a check cell's outputs say that it was not judged, TrustedGrade's or those of a kernel that ran it."""
    first = [line for output in cell.get("outputs", ()) if output.output_type == "error"
             for line in output.traceback[:1]]
    return is_check(cell) and any(line.endswith(f": {Verdict.NOT_JUDGED.value[0]}") for line in first)


class TrustedGrade(NbGraderPreprocessor):
    """Grade every check cell on isolated ranks."""

    isolation = Enum(("auto", "required", "none"), "required", help=(
        '"required": namespaces, or no grades at all. "auto": namespaces where there are any; the feedback and the log '
        'say what is missing. "none": plain processes, of another user where the grader is root.')).tag(config=True)
    seed = Integer(None, allow_none=True, help=(
        "Of the random inputs. None: one that nobody can know for each submission, and the same when that is graded "
        "again. The feedback shows it.")).tag(config=True)
    time_limit_s = Float(TIME_LIMIT_S, help="Seconds that one trial of an exercise may take.").tag(config=True)
    memory_limit_mb = Integer(512, help="MiB that one rank may use on top of torch itself.").tag(config=True)
    over_budget = Float(OVER_BUDGET, min=0.0, max=1.0, help=(
        "Share of the points for an answer that is right and over its budget.")).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Grade one submitted notebook: outputs of the student are dropped, each check cell gets the marks that its
        exercise earns.
        """
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        checks = [index for index, cell in enumerate(nb.cells) if is_check(cell)]
        asked = {index: exercise_of(nb.cells[index].source) for index in checks}
        seed = self.seed_of(nb, resources)
        right = right_cells(self.source_notebook(resources))
        missed: list[Exercise] = []  # so far, for whoever builds on them
        marks: list[ExerciseMark] = []
        with Grader(self.isolation, self.limits(), self.over_budget) as grader:
            for line in grader.isolation.missing:
                self.log.warning("TrustedGrade runs with less protection: %s", line)
            for index, exercise in asked.items():
                cells = cells_above(nb, index)
                report = grader.report(exercise, cells, seed)
                mark = mark_of(report, grader)
                if not report.passed:
                    again = with_right_ones(grader, report, exercise, cells, seed, missed, right)
                    report, mark = (again, mark_of(again, grader)) if again is not report else (report, mark)
                    missed.append(exercise)
                self.log.info("%s", repr(report).partition("\n")[0])
                if mark.broken:
                    self.log.error("Exercise %s could not be run and got no points: %s", exercise.number, mark.broken)
                nb.cells[index].outputs = outputs(report, footnotes(seed, grader.isolation))
                marks.append(mark)
        restored = tuple(nb.metadata.pop(RESTORED, ()))
        put_record(nb, Record(tuple(marks), seed, self.over_budget, grader.isolation.missing, restored,
                              self.digest(resources)))
        return nb, resources

    def limits(self) -> Limits:
        """Seconds and bytes of a trial, from the options of nbgrader's configuration."""
        return Limits(trial_s=self.time_limit_s, memory_bytes=self.memory_limit_mb << 20,
                      cpu_s=max(2, round(2 * self.time_limit_s * NUM_CORES)))  # on the clock it is late before that

    def seed_of(self, nb: NotebookNode, resources: ResourcesDict) -> int:
        """The one that was asked for, else one that follows from the submission and a key that only teachers have."""
        if self.seed is not None:
            return self.seed
        if "nbgrader" not in resources:  # outside of a course, as in tests
            return secrets.randbits(32)
        key = key_of(Path(CourseDirectory(config=self.config).root))
        sources = "\0".join(cell.source for cell in nb.cells if cell.cell_type == "code")
        digest = hmac.new(key, sources.encode(errors="surrogatepass"), hashlib.sha256).digest()
        return int.from_bytes(digest[:4], "big")

    def digest(self, resources: ResourcesDict) -> str:
        """Of the file as it was handed in; "" outside of a course."""
        if "nbgrader" not in resources:
            return ""
        names, coursedir = resources["nbgrader"], CourseDirectory(config=self.config)
        folder = coursedir.format_path(coursedir.submitted_directory, names["student"], names["assignment"])
        return digest_of(Path(folder, f"{names['notebook']}.ipynb"))

    def source_notebook(self, resources: ResourcesDict) -> NotebookNode | None:
        """The teacher's, with solutions; None where there is none."""
        if "nbgrader" not in resources:
            return None
        names, coursedir = resources["nbgrader"], CourseDirectory(config=self.config)
        folder = coursedir.format_path(coursedir.source_directory, ".", names["assignment"])
        path = Path(folder, f"{names['notebook']}.ipynb")
        return nbformat.read(path, as_version=4) if path.exists() else None


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


def cells_above(nb: NotebookNode, check: int) -> Cells:
    """The code above the check cell `check`; the solution cells since the check before it are its own."""
    before = max((index for index in range(check) if is_check(nb.cells[index])), default=-1)
    cells = []
    for index, cell in enumerate(nb.cells[:check]):
        if cell.cell_type == "code" and not is_check(cell):
            name = cell.metadata.get("nbgrader", {}).get("grade_id") or f"cell {index + 1}"
            cells.append({"source": cell.source, "name": str(name), "own": index > before and utils.is_solution(cell)})
    return cells


def right_cells(solved: NotebookNode | None) -> dict[str, str]:
    """By the function that is asked for, the source of the cell that defines it in the teacher's notebook."""
    if solved is None:
        return {}
    checks = [index for index, cell in enumerate(solved.cells) if is_check(cell)]
    return {exercise_of(solved.cells[index].source).function: "\n".join(
        cell["source"] for cell in cells_above(solved, index) if cell["own"]) for index in checks}


def with_right_ones(grader: Grader, report: Report, exercise: Exercise, cells: Cells, seed: int,
                    missed: list[Exercise], right: dict[str, str]) -> Report:
    """The report where each function of an earlier exercise that this one calls is right, if that gets more points.

    Only a report on right results is handed on: words of an error might hold the right function's source.
    """
    own = "\n".join(cell["source"] for cell in cells if cell["own"])
    called = [each for each in missed if each.function in right and re.search(rf"\b{each.function}\b", own)]
    if not called:
        return report
    given = [{"source": right[each.function], "name": f"a right {each.number}", "own": False} for each in called]
    again = grader.report(exercise, [*cells, *given], seed, again=True)
    if again.points <= report.points:
        return report
    numbers = " and ".join(each.number for each in called)
    return replace(again, cause=f"{again.cause}\n".lstrip() + f"judged with a right {numbers}, as yours is not")


def footnotes(seed: int, isolation: sandbox.Isolation) -> str:
    """What a mark depends on: the seed, and whatever protection was missing."""
    lines = [f"random inputs of seed {seed}"]
    return "\n".join(lines + [f"graded with less protection: {line}" for line in isolation.missing])


def outputs(report: Report, notes: str) -> list[NotebookNode]:
    """From these nbgrader reads the points: an error gives none, a number so many, printed text alone all of them."""
    text = printable(f"{report!r}\n  ({notes})\n")
    if not report.points:
        return [new_output("error", ename=report.verdict.value[0], evalue=printable(report.cause),
                           traceback=text.splitlines())]
    points = [] if report.passed else [new_output("execute_result", {"text/plain": f"{report.points:g}"})]
    return [new_output("stream", name="stdout", text=text), *points]


def mark_of(report: Report, grader: Grader) -> ExerciseMark:
    """The report as data, for the record."""
    return ExerciseMark(report.number, report.function, report.verdict.value[0], report.points, report.out_of,
                        printable(repr(report)), printable(report.cause), grader.broken or "", printable(grader.tried))


def printable(text: str) -> str:
    """`text` without control characters: parts of it come from a student's process."""
    return "".join(char for char in text if char.isprintable() or char == "\n")
