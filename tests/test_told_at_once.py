"""What a run that is cut off, or has a test that hangs, has said by then."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import threading

def test_one():
    assert 1 + 1 == 3

def test_two():
    threading.Event().wait()

def test_three():
    assert 2 + 2 == 5
"""


def test_a_failure_is_told_at_once_and_a_test_that_hangs_with_where_it_stood_while_the_others_run(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.told_at_once", "-p", "no:cacheprovider", "-n", "1",
               "-o", "faulthandler_timeout=5", "-o", "faulthandler_exit_on_timeout=true", "."]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert "in test_two" in done.stderr and "in wait" in done.stderr  # the stacks of all threads
    at = [done.stdout.index(words) for words in (
        "test_some.py::test_one failed after", "s: assert (1 + 1) == 3", "test_some.py::test_two failed after",
        "worker 'gw0' crashed while running", "test_some.py::test_three failed after", "= FAILURES =")]
    assert at == sorted(at) and "3 failed" in done.stdout
