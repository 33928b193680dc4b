"""What keeps the runs honest: .ci/run is never green for a part, a test has a budget, sentences are compared, and
sweeps say what they left out.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import snapshots

ROOT = Path(__file__).resolve().parent.parent
MAKE = """#!/bin/bash
echo "make $*"
[[ "$*" =~ $FAILS ]] && exit 2
[[ "$*" =~ $HANGS ]] && sleep 100
exit 0
"""
TESTS = """
def test_a_child_takes_long():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"])

def test_nothing_is_taken():
    pass
"""


@pytest.mark.skipif(not (shutil.which("timeout") and shutil.which("bash")), reason="no bash or no timeout here")
@pytest.mark.parametrize("fails, hangs, status, said", [
    ("none", "none", 0, "PASSED in 0 minutes: test ranks"), ("ranks|run-again", "none", 1, "FAILED: ranks"),
    ("ranks", "none", 0, "PASSED"),  # it passed when it ran again
    ("none", "^test", 3, "PARTIAL: no time was left for all of: test ranks"),
    ("none", "ranks", 3, "PARTIAL: no time was left for all of: ranks")])
def test_ci_is_green_only_when_every_part_has_passed(tmp_path, fails, hangs, status, said):
    for name in (".ci/run", "tools/environment.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("make", "chromium", "ip"):
        (tmp_path / name).write_text(MAKE)
        (tmp_path / name).chmod(0o755)
    settings = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILS": fails, "HANGS": hangs, "CI_SECONDS": "5"}
    finished = subprocess.run(["bash", ".ci/run", "test", "ranks"], cwd=tmp_path, capture_output=True, text=True,
                              env=os.environ | settings)
    assert finished.returncode == status, finished.stdout + finished.stderr
    assert said in finished.stdout


def test_a_test_above_its_budget_of_cpu_seconds_fails_and_its_children_count(tmp_path):
    (tmp_path / "test_times.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-p",
               "tests.cpu", "--rootdir", str(tmp_path), "--cpu-budget=0.3", "--junitxml=try.xml", str(tmp_path)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True,
                              env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert "test_a_child_takes_long took " in finished.stdout and "2 passed, 1 error" in finished.stdout
    taken = re.findall(r'name="CPU seconds" value="([\d.]+)"', (tmp_path / "try.xml").read_text())
    assert [0.4 < float(seconds) < 5 for seconds in taken] == [True, False]


def test_a_sentence_is_compared_with_what_is_stored_for_its_test(tmp_path, monkeypatch):
    class Item:
        path, name = tmp_path / "zero" / "test_a.py", "test_b"

        class config:
            getoption = staticmethod(lambda name: False)

    monkeypatch.setattr(snapshots, "TESTS", tmp_path)
    (tmp_path / "zero").mkdir()
    said = "## test_a.py test_b\ntwo words\n\n## test_a.py test_b (2)\nmore\n"
    (tmp_path / "zero" / "sentences.txt").write_text(said)
    stored = snapshots.Sentences(Item)
    assert "two words" == stored and "more" == stored and not "a third one" == stored
    assert "run with --update-sentences" in repr(stored)


# ---- tests that try many values: a few in `make test`, which says what it left out, and all with --sweep

SWEPT = """
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
    (folder / "test_swept.py").write_text(SWEPT, encoding="utf-8")

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
