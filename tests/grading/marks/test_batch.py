"""`make grade` on a worker that grades nothing: whoever dies, the batch goes on; who is graded is not graded again."""

import json
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from course_lib.grading.marks import batch
from course_lib.grading.marks.standing import CourseFolder, Standing, Status

# Says "ready", then answers each line; the student called "dies" ends it.
FAKE = """
import json, os, sys
print("ready", flush=True)
for line in sys.stdin:
    student = json.loads(line)
    open("seen " + student, "a").write("x")
    if student == "dies":
        os._exit(7)
    print(json.dumps("KeyError: 'x'" * (student == "fails")), flush=True)
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    start = batch.WorkerProcess.__init__

    def fake(self, *arguments, **more):
        start(self, *arguments, **more)
        self.command = [sys.executable, "-c", FAKE]

    monkeypatch.setattr(batch.WorkerProcess, "__init__", fake)
    (tmp_path / ".grading" / "01").mkdir(parents=True)
    return CourseFolder.at(tmp_path)


@pytest.fixture
def started(monkeypatch):
    """The processes of all workers."""
    processes = []
    start = batch.WorkerProcess.start

    def note(self):
        processes.append(start(self))
        return processes[-1]

    monkeypatch.setattr(batch.WorkerProcess, "start", note)
    return processes


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_worker_that_dies_costs_nobody_else_anything_and_none_is_left(course, started, jobs):
    told = {}
    students = ["ada", "dies", "bob", "fails", "cy"]
    batch.keep(course, "01", "ada", "of an earlier grading")
    batch.grade_all(course, "01", students, jobs, [], lambda student, error: told.update({student: error}))
    assert told == {"ada": "", "bob": "", "cy": "", "fails": "KeyError: 'x'",
                    "dies": "the grader's process ended in the middle (exit status 7)"}
    assert (course.root / "seen dies").read_text() == "x"
    kept = {path.stem: json.loads(path.read_text())["error"] for path in course.root.glob(".grading/01/*.json")}
    assert kept == {student: error for student, error in told.items() if error}
    assert len(started) >= 2 and all(each.returncode is not None for each in started)


def test_a_worker_that_takes_too_long_is_ended_and_the_batch_goes_on(course):
    worker = batch.WorkerProcess(course, "01", [], limit_s=0.05)
    worker.command = [sys.executable, "-c", "print('ready', flush=True)\nimport threading; threading.Event().wait()"]
    found = worker.grade("ada")
    worker.close()
    assert found == "it took longer than 0.05 s, and was ended"


@pytest.fixture
def signals_go_elsewhere():
    """The system gives signals to another thread than this one, as it may at any time: they interrupt no wait here."""
    over = threading.Event()
    taker = threading.Thread(target=over.wait)
    taker.start()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    over.set()
    taker.join()


GRADES_ONE = "print('ready', flush=True); input(); print('\"\"', flush=True); input(); "


@pytest.mark.ci
@pytest.mark.parametrize("says, done", [("", []), ("print('ready', flush=True); ", []), (GRADES_ONE, ["ada"])],
                         ids=["before it is ready", "at work", "with the second"])
def test_ctrl_c_ends_the_batch_whatever_a_worker_is_doing_and_what_was_under_way_is_graded_the_next_time(
        course, says, done, signals_go_elsewhere, monkeypatch):
    start, processes, told = subprocess.Popen, [], []

    def note(*arguments, **more):
        asks_for_an_end = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(3600)"
        processes.append(start([sys.executable, "-c", says + asks_for_an_end], **more))
        return processes[-1]

    monkeypatch.setattr(batch.subprocess, "Popen", note)
    with pytest.raises(KeyboardInterrupt):
        batch.grade_all(course, "01", ["ada", "bob"], 1, [], lambda student, error: told.append(student))
    assert [each.returncode for each in processes] == [-signal.SIGKILL] and told == done


@pytest.mark.parametrize("asked, told", [([], "does not start"), (["--report"], "")])
def test_a_worker_that_does_not_come_up_leaves_a_report_and_the_report_alone_asks_none(
        course, asked, told, monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("nbgrader does not start: no memory")

    monkeypatch.setattr(CourseFolder, "at", lambda *_: course)
    monkeypatch.setattr(CourseFolder, "knows", lambda *_: True)
    for name, value in (("grade_all", refuse), ("make_assignment", lambda *_: None), ("standings", lambda *_: [])):
        monkeypatch.setattr(batch, name, value)
    assert batch.main(["01", *asked]) == 0
    said = capsys.readouterr()
    assert told in said.err and bool(said.err) == bool(told) and "nobody yet" in said.out


def test_who_is_graded_is_left_alone_unless_it_is_asked_for():
    found = [Standing(status.name, status) for status in Status]
    assert batch.to_grade(found, False, []) == ["NOT_YET", "INTERRUPTED", "AGAIN", "FAILED", "OUR_FAULT"]
    assert {"GRADED", "BY_HAND"} < {*batch.to_grade(found, True, [])}
    assert batch.to_grade(found, True, ["GRADED", "UNREADABLE"]) == ["GRADED"]


def test_two_batches_on_one_course_are_refused_and_the_lock_goes_with_its_owner(tmp_path):
    with batch.only_one(tmp_path / ".grading" / "lock"):
        with pytest.raises(SystemExit, match="another `make grade` is at work"):
            with batch.only_one(tmp_path / ".grading" / "lock"):
                pass
    with batch.only_one(tmp_path / ".grading" / "lock"):
        pass


def test_an_assignment_of_which_nbgrader_has_noted_only_some_cells_is_made_again(course, monkeypatch):
    made = []
    monkeypatch.setattr(CourseFolder, "knows", lambda *_: True)
    monkeypatch.setattr(batch.subprocess, "run",
                        lambda command, **_: made.append(command) or SimpleNamespace(returncode=0))
    solutions = course.root / "solutions" / "01" / "01.ipynb"
    solutions.parent.mkdir(parents=True)
    solutions.write_text(json.dumps({"cells": [{"metadata": {}}, *(
        {"metadata": {"nbgrader": {"grade_id": name}}} for name in "ab")]}))
    for noted, times in (({"a", "b"}, 0), ({"a"}, 1)):
        monkeypatch.setattr(CourseFolder, "grade_ids", lambda *_, noted=noted: noted)
        batch.make_assignment(course, "01")
        assert len(made) == times
