"""`make new-exercise` writes stubs that load, are known and judged, and say themselves what is left to write."""

import os
import shutil
import subprocess
import sys

import pytest

from tools import exercises, new_exercise
from tools.solutions import ROOT

LOOK = """
from course_lib.grading.__main__ import explain
from course_lib.grading.registry import exercise
from course_lib.grading.selfstudy import examine
from course_lib.grading.staying import StayingAttempts
from tools import answers, exercises
from tools.solutions import SOLUTIONS, names_of

asked, right = exercise("6.9"), names_of(SOLUTIONS[6])["my_double"]
def my_double(given):
    raise NotImplementedError()
with StayingAttempts() as attempts:
    for function in (right, my_double, lambda given: given):
        print(examine(asked, function, attempts=attempts).verdict.value[0])
print(*exercises.unwritten("06_zero"), sep="\\n")
print(explain(asked).splitlines()[0])
answers.rows(SOLUTIONS[6])
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The course in a folder of the test's, with a new exercise 6.9."""
    folder = tmp_path_factory.mktemp("authors")
    for part in ("course_lib", "tools", "solutions"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for file in ("pyproject.toml", "tests/nbval_sanitize.cfg"):  # which tools.notebooks reads
        shutil.copy(ROOT / file, folder / file)
    done = run(folder, "-m", "tools.new_exercise", "6.9", "my_double")
    assert done.stdout.startswith("6.9 my_double is there"), done.stderr
    assert "solutions/06_zero/judge_shards.py" in done.stdout
    return folder


def run(folder, *arguments):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=70,
                          env=os.environ | {"PYTHONPATH": str(folder)})


def test_stubs_load_and_are_judged_and_what_is_left_is_named(copy):
    done = run(copy, "-c", LOOK)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["correct", "not written yet", "not right yet"]
    for file in ("06_zero.ipynb", "answers.py", "hints.md", "judge_shards.py"):
        assert any(line.startswith(f"solutions/06_zero/{file}, line ") and "TO WRITE" in line for line in lines), file
    assert lines[-1].startswith("6.9 my_double: ")
    assert done.stderr.strip().endswith("ValueError: 06_zero, 6.9: 0 rows of the kind wrong, expected 3 or more")


@pytest.mark.parametrize("number, function, words", [
    ("6.8", "", "has 6.8 or my_exercise_8 already"), ("6.99", "my_most_devices", "has 6.99 or my_most_devices already"),
    ("11.1", "", "expected a chapter's number"), ("6", "", "expected a chapter's number"), ("a.b", "", "such as 6.9")])
def test_a_number_or_a_name_that_is_no_new_one_is_refused(number, function, words):
    with pytest.raises(ValueError, match=words):
        new_exercise.create(number, function)


def test_recorded_are_chapters_that_were_changed_since_all_went_well(tmp_path, monkeypatch):
    monkeypatch.setattr(exercises, "DONE", tmp_path / "done.json")
    monkeypatch.setattr(exercises, "run_tests", lambda name: name != "02_collectives")
    monkeypatch.setattr(exercises, "faults", lambda name: ["3.1 wrong x: correct"] if name[:2] == "03" else [])
    assert [exercises.finish(name) for name in exercises.assignments()] == [0, 1, 1, *[0] * 7]
    before = exercises.changed()  # of the two, where they differ from the last commit
    monkeypatch.setattr(exercises, "digest", lambda name: "another" if name[:2] == "06" else "")
    assert "06_zero" not in before and "06_zero" in exercises.changed()
