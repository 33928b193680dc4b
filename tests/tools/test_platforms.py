"""The grader packed for a platform grades as `make grade` does, also in a root without namespaces, and says what is
missing there.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.grading.marks.test_platforms import RUNNER
from tests.grading.small_class import ALL, NAME, POINTS, submit, text_of, with_wrong_rows
from tools.platforms.__main__ import pack, requirements

# As in a container: root that may make no namespaces. None where this machine cannot take the right away.
CONTAINER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
CAN_PRETEND = os.geteuid() == 0 and shutil.which("setpriv") is not None


def unpack(platform: str, folder: Path) -> Path:
    """The archive's files, those with a program's rights as programs."""
    with zipfile.ZipFile(pack(platform, NAME, folder / "all.zip")) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, folder / "source"))
            if entry.external_attr >> 16 & stat.S_IXUSR:
                path.chmod(0o755)
    return folder / "source"


def run(command, **more):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, timeout=1200,
                          env=environment | {"COURSE_PYTHON": sys.executable} | more.pop("env", {}), **more)


@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.skipif(not CAN_PRETEND, reason="only root can take its own right to namespaces away")
def test_gradescopes_zip_gives_the_marks_of_nbgrader_in_a_root_without_namespaces(tmp_path):
    source = unpack("gradescope", tmp_path)
    submit(tmp_path, "s", with_wrong_rows(text_of("solutions")), f"{NAME} (1).ipynb")
    shutil.move(tmp_path / "submitted" / "s" / NAME, tmp_path / "submission")
    done = run([*CONTAINER, source / "run_autograder"], env={"AUTOGRADER_ROOT": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert {each["number"]: each["score"] for each in result["tests"]} == POINTS | {"1.5": 0}
    assert "graded with less protection: no namespaces" in result["output"]
    assert f"taken from '{NAME} (1).ipynb'" in result["output"]


@pytest.mark.sweep(words="another platform, which reads what the same command writes")
def test_classroom_50_gets_its_result_and_a_cut_file_is_called_so(tmp_path):
    source = unpack("classroom50", tmp_path)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / f"{NAME}.ipynb").write_text(text_of("solutions")[:5000], encoding="utf-8")
    done = run([sys.executable, source / "autograder.py"], cwd=checkout, env=RUNNER)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((checkout / "result.json").read_text(encoding="utf-8"))
    assert (result["score"], result["max-score"]) == (0, 2 * ALL)
    assert "cut off" in result["tests"][0]["output"]


@pytest.mark.parametrize("platform, starters", [("gradescope", {"setup.sh", "run_autograder"}),
                                                ("classroom50", {"autograder.py"})])
def test_the_archive_has_what_the_platform_calls_at_its_top_and_one_chapters_solutions(tmp_path, platform, starters):
    with zipfile.ZipFile(pack(platform, NAME, tmp_path / "all.zip")) as archive:
        names = set(archive.namelist())
    assert starters < {name for name in names if "/" not in name}
    solved = {name for name in names if name.startswith("course/solutions/") and "/answers" in name or ".ipynb" in name}
    assert solved == {f"course/{part}/{NAME}/{NAME}.ipynb" for part in ("solutions", "exercises")}
    assert f"course/solutions/{NAME}/recorded.json" in names and "course/.grading_key" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith("gradebook.db")]


def test_an_unknown_assignment_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="expected one of 01_why_distribute"):
        pack("gradescope", "02_collective", tmp_path / "all.zip")


def test_its_requirements_are_the_courses_own_and_nbgrader():
    assert {"torch", "nbgrader"} <= {line.split(">")[0] for line in requirements()}


@pytest.mark.parametrize("script", ["gradescope_setup.sh", "gradescope_run.sh"])
def test_its_shell_scripts_have_no_faults_that_shellcheck_finds(script):
    path = Path(__file__).resolve().parents[2] / "tools" / "platforms" / script
    checked = run([Path(sys.executable).parent / "shellcheck", path])
    assert checked.returncode == 0, checked.stdout
