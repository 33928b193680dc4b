"""Without namespaces, a grader that is root has its ranks run as another user, and leaves nothing of that user."""

import json
import os
import subprocess
import sys

import psutil
import pytest

from course_lib.grading.trusted import preprocessor, sandbox
from course_lib.grading.trusted.grader import Grader
from course_lib.grading.trusted.inside import privileges
from tests.grading.class_exercise import EXERCISE, LIMITS, notebook

UID = privileges.nobodys_uid()
pytestmark = pytest.mark.skipif(UID is None, reason="becoming another user takes root on Linux")


def rehearse(**asked):
    done = subprocess.run([sys.executable, "-I", sandbox.PRIVILEGES, json.dumps({"uid": UID, **asked})],
                          capture_output=True, text=True)
    return json.loads(done.stdout)


def test_it_is_tried_what_the_other_user_can_read(tmp_path):
    closed, open_to_all = tmp_path / "gradebook.db", "/usr"
    closed.write_text("marks")
    closed.chmod(0o600)
    paths = [str(closed), open_to_all]
    assert rehearse(needed=paths, secret=paths) == {"unreadable": [str(closed)], "readable": [open_to_all]}


def test_what_runs_as_that_user_is_killed_wherever_it_hides_and_nothing_else():
    hidden = subprocess.Popen(["sleep", "600"], user=UID, group=UID, extra_groups=[], start_new_session=True, env={})
    own = subprocess.Popen(["sleep", "600"])
    try:
        privileges.kill_processes_of(UID)
        assert hidden.wait(timeout=60) == -9 and own.poll() is None
    finally:
        for process in (hidden, own):
            process.kill()
            process.wait()


def test_two_graders_never_share_a_user():
    asked = f"import sys; sys.path.insert(0, {str(sandbox.COURSE)!r}); " \
            "from course_lib.grading.trusted.inside.privileges import nobodys_uid; print(nobodys_uid())"
    other = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert int(other.stdout) != UID


def test_what_is_readable_is_said_and_where_nothing_can_be_done_why(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "why_no_namespaces", lambda: "a container")
    monkeypatch.setattr(sandbox, "rehearse_other_user", lambda folder: sandbox.OtherUser(readable=("solutions",)))
    isolation = sandbox.choose("auto")
    assert isolation.other_user and "everybody can read solutions" in isolation.missing[0]
    assert not any("may outlive" in line for line in isolation.missing)
    monkeypatch.setattr(sandbox, "rehearse_other_user", lambda folder: sandbox.OtherUser("no reason"))
    isolation = sandbox.choose("auto")
    assert not isolation.other_user and "no other user (no reason)" in isolation.missing[0]


HOSTILE = """
import os, subprocess
def pass_on(*_):
    subprocess.Popen(["sh", "-c", "setsid env -i sleep 600 &"]).wait()
    try:
        os.kill(os.getppid(), 9)
        what = "killed the grader"
    except PermissionError:
        what = "may not kill"
    writes = [path for path in ({course!r}, os.path.dirname(os.getcwd())) if os.access(path, os.W_OK)]
    raise RuntimeError(f"{{what}}, user {{os.getuid()}}, writes {{writes}}")
"""


@pytest.mark.ci
def test_a_rank_may_neither_kill_the_grader_nor_write_what_is_not_its_own_nor_leave_a_process():
    if why_not := sandbox.rehearse_other_user(os.getcwd()).why_not:
        pytest.skip(f"no other user: {why_not}")
    cells = preprocessor.cells_above(*notebook(HOSTILE.format(course=str(sandbox.COURSE))))
    with Grader("none", LIMITS) as grader:
        report = grader.report(EXERCISE, cells, seed=1)
        assert f"may not kill, user {UID}, writes []" in report.cause
    assert not [each.pid for each in psutil.process_iter() if each.uids().real == UID]
