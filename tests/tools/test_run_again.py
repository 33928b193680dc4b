"""What failed is run once more, alone, and named; a notebook as a whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_again import FAILED, MOST

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.ci
BUSY = """
import pathlib

def test_that_a_busy_moment_fails():
    path = pathlib.Path(__file__).with_name("seen")
    seen = path.exists()
    path.touch()
    assert seen

def test_that_passes():
    pass
"""


def run(folder, *arguments):
    return subprocess.run([sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": ""})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_busy.py").write_text(BUSY)
    return tmp_path


@pytest.mark.parametrize("wrong", ["", "def test_that_fails():\n    assert False\n"])
def test_what_passes_alone_is_named_unstable_and_only_what_fails_twice_fails(folder, wrong):
    (folder / "test_wrong.py").write_text(wrong)
    assert run(folder, "pytest").returncode == 1
    again = run(folder, "tools.run_again")
    assert again.returncode == bool(wrong), again.stdout
    assert "UNSTABLE" in again.stdout and "PASSED test_busy.py::test_that_a_busy_moment_fails" in again.stdout
    assert ("FAILED test_wrong.py::test_that_fails" in again.stdout) == bool(wrong)
    assert "test_that_passes" not in again.stdout


def test_of_a_failed_cell_the_whole_notebook_runs_and_its_failed_items_are_looked_at(folder):
    names = {"a.ipynb::Cell 9": True, "test_busy.py::test_that_passes": True}
    (folder / FAILED).parent.mkdir(parents=True)
    (folder / FAILED).write_text(json.dumps(names))
    (folder / "a.ipynb").write_text("{}")
    again = run(folder, "tools.run_again")
    assert "No such file" not in again.stderr and "run_notebooks" in again.stderr, again.stderr


@pytest.mark.parametrize("num_failed", [0, MOST + 1])
def test_nothing_to_run_again_or_too_much_is_a_failure(folder, num_failed):
    (folder / FAILED).parent.mkdir(parents=True)
    (folder / FAILED).write_text(json.dumps({f"test_busy.py::test_{number}": True for number in range(num_failed)}))
    again = run(folder, "tools.run_again")
    assert again.returncode == 1 and f"{num_failed} tests and cells failed" in again.stdout
