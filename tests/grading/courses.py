"""Course folders as a teacher has them, each made once for all tests of a run and read by several of them.

`made_course`: chapter 1, the quickest to grade, in nbgrader's gradebook. `graded_class`: three students of it, graded
by `make grade`. `collectives_class`: the commands that TEACHING.md gives, with the submissions of submissions.py.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output
from nbgrader.apps import GenerateAssignmentApp, NbGrader

from course_lib.grading.marks import batch
from course_lib.grading.trusted import sandbox
from tests.grading import small_class, submissions
from tests.grading.submissions import ROOT, notebook_of

# Where a machine has no namespaces, with less protection.
ISOLATION = f"--TrustedGrade.isolation={'required' if sandbox.why_no_namespaces() is None else 'auto'}"


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """The folder that `build` fills, by whichever of xdist's workers needs it first. Nobody may write into it."""
    import fcntl  # Windows has no class grader

    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = Path(f"{folder}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(folder)
    return folder


def give_out(folder: Path, name: str) -> None:
    """What a teacher's folder has of an assignment before anything is made."""
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / name, folder / part / name)


def run_here(app: NbGrader, folder: Path, *arguments: str) -> None:
    """One of nbgrader's commands in the course at `folder`, without a Python of its own, which takes seconds."""
    with chdir(folder):
        app.initialize(list(arguments))
        app.start()


def make(folder: Path) -> None:
    """The assignment in nbgrader's gradebook."""
    give_out(folder, small_class.NAME)
    run_here(GenerateAssignmentApp(), folder, small_class.NAME, "--force")


@pytest.fixture(scope="session")
def made_course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "made_course", make)


class WorkerHere:
    """In place of a WorkerProcess, whose Python takes seconds to import nbgrader: the same worker, in this process."""

    stopped = False

    def __init__(self, course, name: str, options: list[str]) -> None:
        self.worker = batch.GradingWorker(name, options)

    def grade(self, student: str) -> str:
        return self.worker.grade(student)

    def close(self) -> None: ...


@pytest.fixture(scope="session")
def graded_class(tmp_path_factory: pytest.TempPathFactory, made_course: Path) -> Path:
    def build(folder: Path) -> None:
        shutil.copytree(made_course, folder, dirs_exist_ok=True)
        for student, text in small_class.three().items():
            small_class.submit(folder, student, text)
        with pytest.MonkeyPatch.context() as patched, chdir(folder):
            patched.setattr(batch, "WorkerProcess", WorkerHere)
            batch.main([small_class.NAME, "--quiet", "--", ISOLATION])

    return built_once(tmp_path_factory, "graded_class", build)


# ---- chapter 2, from the command line

def nbgrader(folder: Path, *arguments: str, succeeds: bool = True, **environment: str) -> str:
    """The output of one command in the course at `folder`."""
    done = subprocess.run([sys.executable, "-m", "nbgrader", *arguments], cwd=folder, text=True, timeout=1800,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment)
    assert (done.returncode == 0) == succeeds, done.stderr[-5000:]
    return done.stdout + done.stderr


def commands(about_one: bool = False) -> list[list[str]]:
    """What TEACHING.md tells a teacher to type: for a class whose files lie in their folders, or to grade a single
    STUDENT again.
    """
    section = (ROOT / "TEACHING.md").read_text(encoding="utf-8")
    if not about_one:
        section = section.partition("## A class, step by step\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    \.venv/bin/nbgrader (.*)$", section, re.MULTILINE)
    return [line.split() for line in lines if ("STUDENT" in line) == about_one and "zip_collect" not in line]


def command_for(student: str) -> list[str]:
    (command,) = commands(about_one=True)
    return [word.replace("STUDENT", student) for word in command]


# What stands in cells of the hostile submission: ways to take the others' points along; test_cheats.py has more.
HOSTILE = {
    "ring_reduce_scatter": "import os\ndef my_ring_reduce_scatter(tensor):\n    os._exit(0)\n",
    "ring_all_gather": "def my_ring_all_gather(tensor):\n    while True: pass\n",
    "ring_all_reduce": "def my_ring_all_reduce(tensor:\n",
    "tree_reduce": "import torch.distributed as d\nmy_tree_reduce = getattr(d, 're' + 'duce')\n",
    "check_tree_reduce": "1 + 1",
}


def hostile(stub: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Nothing right, full marks in the outputs, and one check cell deleted."""
    notebook = nbformat.from_dict(stub)
    submissions.without("check_all_to_all")(notebook)
    for cell in notebook.cells:
        cell.source = HOSTILE.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
        if cell.cell_type == "code":
            cell.outputs = [new_output("execute_result", {"text/plain": "2"}, execution_count=1)]
    return notebook


def class_of(students: list[str]) -> Callable[[Path], None]:
    """What fills a folder with chapter 2, the submissions of `students` and three more, graded."""
    def build(folder: Path) -> None:
        give_out(folder, submissions.NAME)
        generate, name_students, autograde, *others = commands()
        nbgrader(folder, *generate)
        (folder / name_students[-1]).write_text("id,first_name,last_name,email\nZoë O'Neill,Zoë,O'Neill,\n",
                                                encoding="utf-8")
        nbgrader(folder, *name_students)
        stub, solved = map(notebook_of, ("exercises", "solutions"))
        handed_in = {student: submissions.of_student(student) for student in students}
        handed_in |= {"half": submissions.solve_half(stub, solved), "hostile": hostile(stub), "untouched": stub}
        for student, notebook in handed_in.items():
            submissions.submit(folder, student, notebook)
        # less time than there is: a loop without end takes all of it
        (folder / "autograde.log").write_text(
            nbgrader(folder, *autograde, "--TrustedGrade.time_limit_s=10", ISOLATION))
        for command in others:
            nbgrader(folder, *command)
    return build


# Right, wrong, curious, incomplete and ambiguous ones; `half`, `hostile` and `untouched` are always there: `hostile`
# has loops without an end and cells that do not parse. test_trusted.py tries each way to fail on a smaller exercise.
FEW = ["Zoë O'Neill", "wrong", "reads and writes outside", "solution doubled"]


@pytest.fixture(scope="session")
def collectives_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory, "collectives_class", class_of(FEW))
