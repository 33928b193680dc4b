"""The tests that try many values: a few in `make test`, which says what it left out, and all with --sweep."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import order

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest

@pytest.mark.sweep("seed", few=[0], all=range(4), words="1 seed of 4")
def test_one(seed):
    assert seed < 3

@pytest.fixture(scope="module")
def course(students):
    return len(students)

class TestFile:
    pytestmark = pytest.mark.sweep("students", few=[["a"]], all=[["a", "b"]], scope="module", words="1 student of 2")

    def test_two(self, course):
        assert course

    def test_none_of_them(self):
        pass

@pytest.mark.sweep(words="another browser")
def test_three():
    pass
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    (folder / "test_swept.py").write_text(TESTS, encoding="utf-8")

    def of(*options):
        command = [sys.executable, "-m", "pytest", "-p", "tests.sweep", "-p", "no:cacheprovider", "-rA", *options, "."]
        return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True).stdout

    return of


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.ci)])
def test_a_few_values_run_and_what_is_left_out_is_printed_once(run, workers):
    text = run("-n", workers)
    assert "3 passed" in text and "test_one[0]" in text and "test_one[1]" not in text and "PASSED" in text
    assert not any(line.startswith("PASSED") and "test_three" in line for line in text.splitlines())
    *_, told = text.split("`make sweep` runs the whole")
    assert [line for line in told.splitlines() if line.startswith("test_swept")] == [
        "test_swept.py: 1 student of 2", "test_swept.py::test_one: 1 seed of 4",
        "test_swept.py::test_three: another browser"]


@pytest.mark.ci
def test_all_values_run_with_sweep_and_of_a_test_that_did_not_run_nothing_is_said(run):
    text = run("-n", "0", "--sweep", "-m", "sweep")
    assert "FAILED test_swept.py::test_one[3]" in text and "1 failed, 6 passed" in text
    assert "make sweep" not in text and "make sweep" not in run("-n", "0", "-k", "none_of_them")


def test_the_files_that_come_first_are_there():
    assert [path for path in order.LONGEST_FIRST if not (ROOT / path).exists()] == []
