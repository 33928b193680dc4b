"""Gradescope's autograder grades as `make grade` does, also in a root without namespaces, and says what is missing."""

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib.grading.marks.gradescope import NotJudged, main, results
from course_lib.grading.marks.record import ExerciseMark, Record
from course_lib.grading.marks.standing import Standing, Status
from tests.grading.small_class import NAME, POINTS, submit, text_of, with_wrong_rows
from tools.gradescope.__main__ import HERE, pack, requirements

MARKS = (ExerciseMark("2.1", "f", "correct", 4.0, 4, "✓ 2.1"),
         ExerciseMark("2.2", "g", "right, but over budget", 1.5, 3, "◐ 2.2"),
         ExerciseMark("2.10", "h", "not written yet", 0.0, 2, "○ 2.10"))
GRADED = Standing("ada", Status.GRADED, record=Record(MARKS, 7, 0.5, missing=("no namespaces",)), points=5.5,
                  out_of=9.0)

# As in a container: root that may make no namespaces. None where this machine cannot take the right away.
CONTAINER = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
CAN_PRETEND = os.geteuid() == 0 and shutil.which("setpriv") is not None


def test_each_exercise_has_its_points_and_the_student_hears_what_protection_is_missing():
    found = results(GRADED)
    assert [(each["number"], each["score"], each["max_score"]) for each in found["tests"]] == [
        ("2.1", 4.0, 4), ("2.2", 1.5, 3), ("2.10", 0.0, 2)]
    assert sum(each["score"] for each in found["tests"]) == GRADED.mark and "score" not in found
    assert "graded with less protection: no namespaces" in found["output"] and "seed 7" in found["output"]


def test_a_file_that_cannot_be_judged_says_why_before_anything_else():
    assert results(Standing("ada", Status.NOTHING))["output"] == "Not graded: nothing handed in. Hand in again."
    found = results(Standing("cy", Status.UNREADABLE, "the file is empty", out_of=9.0))
    assert found["score"] == 0 and found["output"] == "Not graded: unreadable. the file is empty. Hand in again."


@pytest.mark.parametrize("status", [Status.OUR_FAULT, Status.FAILED, Status.INTERRUPTED, Status.NOT_YET,
                                    Status.AGAIN, Status.BY_HAND])
def test_where_the_fault_may_be_ours_nothing_is_written(status):
    record = GRADED.record if status in (Status.OUR_FAULT, Status.AGAIN, Status.BY_HAND) else None
    with pytest.raises(NotJudged, match=status.word):
        results(Standing("ada", status, record=record, out_of=9.0))


def test_points_by_hand_and_a_penalty_count():
    assert results(replace(GRADED, points=GRADED.record.points + 1, penalty=0.5))["score"] == 6.0


@pytest.mark.parametrize("lay, words", [
    (lambda path: path.symlink_to("/etc/passwd"), "'x' is a link"), (os.mkfifo, "'x' is a named pipe"),
    (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40), "more than 1000 files, 256 MB")])
def test_links_pipes_and_too_much_are_refused_before_anything_is_copied(tmp_path, lay, words):
    (tmp_path / "submission").mkdir()
    lay(tmp_path / "submission" / "x")
    assert main(NAME, tmp_path / "submission", tmp_path / "no course", tmp_path / "results.json") == 0
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert found["score"] == 0 and words in found["output"]


def run(command, **more):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, timeout=1200,
                          env=environment | {"COURSE_PYTHON": sys.executable} | more)


@pytest.mark.ci
@pytest.mark.timeout(240)
@pytest.mark.skipif(not CAN_PRETEND, reason="only root can take its own right to namespaces away")
def test_the_zip_gives_the_marks_of_nbgrader_in_a_root_without_namespaces(tmp_path):
    with zipfile.ZipFile(pack(NAME, tmp_path / "all.zip")) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, tmp_path / "source"))
            if entry.external_attr >> 16 & stat.S_IXUSR:
                path.chmod(0o755)
    submit(tmp_path, "s", with_wrong_rows(text_of("solutions")), f"{NAME} (1).ipynb")
    shutil.move(tmp_path / "submitted" / "s" / NAME, tmp_path / "submission")
    done = run([*CONTAINER, tmp_path / "source" / "run_autograder"], AUTOGRADER_ROOT=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))
    assert {each["number"]: each["score"] for each in result["tests"]} == POINTS | {"1.5": 0}
    assert "graded with less protection: no namespaces" in result["output"]
    assert f"taken from '{NAME} (1).ipynb'" in result["output"]


def test_the_archive_has_what_gradescope_calls_at_its_top_and_one_chapters_solutions(tmp_path):
    with zipfile.ZipFile(pack(NAME, tmp_path / "all.zip")) as archive:
        names = set(archive.namelist())
    assert {"setup.sh", "run_autograder"} < {name for name in names if "/" not in name}
    solved = {name for name in names if "/answers" in name or "/hints" in name or name.endswith(".ipynb")}
    assert solved == {f"course/{part}/{NAME}/{NAME}.ipynb" for part in ("solutions", "exercises")}
    assert f"course/solutions/{NAME}/recorded.json" in names and "course/.grading_key" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith("gradebook.db")]


def test_its_requirements_are_the_courses_own_and_nbgrader():
    assert {"torch", "nbgrader"} <= {line.split(">")[0] for line in requirements()}


@pytest.mark.parametrize("script", ["setup.sh", "run_autograder"])
def test_its_shell_scripts_have_no_faults_that_shellcheck_finds(script):
    checked = run([Path(sys.executable).parent / "shellcheck", HERE / script])
    assert checked.returncode == 0, checked.stdout
