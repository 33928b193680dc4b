"""What ranks have started is found by the mark in its environment, also in its first moment, when it has none yet."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import psutil

from course_lib.runtime import context
from course_lib.runtime.ranks.processes import kill_by_mark


@contextmanager
def started_with_mark(number=1):
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                                env={**os.environ, context.RANK_MARK: "a launch"}) for _ in range(number)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_process_whose_program_is_still_being_loaded_does_not_escape(monkeypatch):
    looked, environ = Counter(), psutil.Process.environ

    def empty_at_first(process):
        looked[process.pid] += 1
        return environ(process) if looked[process.pid] > 3 or process.pid != started.pid else {}

    with started_with_mark() as (started,):
        monkeypatch.setattr(psutil.Process, "environ", empty_at_first)
        kill_by_mark("another launch", spare=())
        assert started.poll() is None and looked[started.pid] > 3
        looked.clear()
        kill_by_mark("a launch", spare=())
        assert started.wait(timeout=10) < 0


def test_what_is_missed_at_the_first_look_is_ended_at_the_next(monkeypatch):
    looked, environ = Counter(), psutil.Process.environ

    def without_mark_at_first(process):
        looked[process.pid] += 1
        return {"PATH": ""} if process.pid == missed.pid and looked[process.pid] == 1 else environ(process)

    with started_with_mark(2) as (found, missed):
        monkeypatch.setattr(psutil.Process, "environ", without_mark_at_first)
        kill_by_mark("a launch", spare=())
        assert found.wait(timeout=10) < 0 and missed.wait(timeout=10) < 0


def test_a_thread_of_the_kernel_which_never_has_an_environment_is_not_waited_for(monkeypatch):
    looked = Counter()

    def empty(process):
        looked[process.pid] += 1
        return {}

    with started_with_mark() as (started,):
        monkeypatch.setattr(psutil.Process, "environ", empty)
        monkeypatch.setattr(psutil.Process, "exe", lambda process: "")
        kill_by_mark("a launch", spare=())
        assert looked[started.pid] == 1 and started.poll() is None
