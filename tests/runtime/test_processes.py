"""What ranks have started is found by the mark in its environment, also in its first moment, when it has none yet."""

import os
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from course_lib.runtime import context
from course_lib.runtime.ranks.processes import kill_by_mark

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.mark.parametrize("instead, looks, exe, ends", [
    ({}, 3, sys.executable, True),  # its program is still being loaded
    ({"PATH": ""}, 1, sys.executable, True),  # missed at the first look
    ({}, 1000, "", False),  # a thread of the kernel, which never has an environment, is not waited for
], ids=["loading", "missed", "kernel"])
def test_a_process_with_the_mark_ends_also_where_the_first_looks_do_not_show_it(instead, looks, exe, ends, monkeypatch):
    started = [subprocess.Popen(SLEEP, env={**os.environ, context.RANK_MARK: "a launch"}) for _ in range(2)]
    hidden, seen = started
    looked, environ = Counter(), psutil.Process.environ

    def hide(process):
        looked[process.pid] += 1
        return instead if process.pid == hidden.pid and looked[process.pid] <= looks else environ(process)

    monkeypatch.setattr(psutil.Process, "environ", hide)
    monkeypatch.setattr(psutil.Process, "exe", lambda process: exe)
    try:
        kill_by_mark("another launch", spare=())
        assert hidden.poll() is None and seen.poll() is None
        assert (looked[hidden.pid] > looks) == (instead == {} and ends)
        looked.clear()
        kill_by_mark("a launch", spare=())
        assert seen.wait(timeout=10) < 0
        assert hidden.wait(timeout=10) < 0 if ends else looked[hidden.pid] <= 2 and hidden.poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
