"""What ranks have started is found by the mark in its environment, also in its first moment, when it has none yet."""

import os
import subprocess
import sys
from collections import Counter

import psutil

from course_lib.runtime import context
from course_lib.runtime.ranks.processes import kill_marked


def test_a_process_whose_program_is_still_being_loaded_does_not_escape(monkeypatch):
    looked, environ = Counter(), psutil.Process.environ

    def empty_at_first(process):
        looked[process.pid] += 1
        return environ(process) if looked[process.pid] > 3 or process.pid != started.pid else {}

    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                               env={**os.environ, context.RANK_MARK: "a launch"})
    try:
        monkeypatch.setattr(psutil.Process, "environ", empty_at_first)
        kill_marked("another launch", spare=())
        assert started.poll() is None and looked[started.pid] > 3
        looked.clear()
        kill_marked("a launch", spare=())
        assert started.wait(timeout=10) < 0
    finally:
        started.kill()
        started.wait()
