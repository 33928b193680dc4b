"""The process that forks ranks: when it starts, what becomes of one that is frozen, and the trace of all messages."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import pytest

from course_lib.runtime import LaunchError, launch, launcher
from course_lib.runtime.errors import LaunchInterrupted
from course_lib.runtime.ranks.fork_pool import ForkPool
from course_lib.runtime.ranks.supervisor import Supervisor
from tests.faults import inside
from tests.faults.kinds import interrupt_once, rank_sum
from tests.faults.traces import alive

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there ranks are forked")


@pytest.fixture(autouse=True)
def the_next_launch_works():
    launcher.pool().wait_for_preload()
    yield
    assert launch(rank_sum, world_size=2) == [1.0, 1.0]


# When it starts, and when it leaves

SERVER_AT_THE_IMPORT_OF_TORCH = """
import sys

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.meta_path.remove(self)
            from course_lib.runtime.ranks import pools
            print("started:", pools.pool()._server is not None)

sys.meta_path.insert(0, Watch())
import course_lib.runtime
"""
IN_A_KERNEL = """
from IPython.core.interactiveshell import InteractiveShell
InteractiveShell.instance().kernel = "what a kernel's shell has"
"""


@pytest.mark.ci
@pytest.mark.parametrize(("before", "started"), [(IN_A_KERNEL, True), ("", False), ("import IPython", False)])
def test_importing_starts_the_server_in_a_kernel_before_torch_is_imported_and_nowhere_else(before, started):
    code = before + SERVER_AT_THE_IMPORT_OF_TORCH
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=80,
                         cwd=Path(__file__).parents[2])
    assert ran.stdout == f"started: {started}\n", ran.stderr


@pytest.mark.ci
def test_a_server_that_nobody_asks_leaves_with_its_folder_and_not_while_a_launch_is_under_way(monkeypatch):
    pool = ForkPool(leaves_after_s=0.0)
    pool.start()
    inside.wait_until_idle(pool)
    assert inside.server_pid(pool) is None and not Path(pool.folder).exists()
    monkeypatch.setattr(launcher, "pool", lambda: pool)
    supervised = Supervisor.run

    def run(self):
        inside.wait_until_idle(pool)  # its time has come, between the beginning of the launch and its first rank
        assert inside.server_pid(pool) is not None
        return supervised(self)

    monkeypatch.setattr(Supervisor, "run", run)
    for _ in range(2):  # at once after each the server leaves, at any moment of the next call
        assert launch(rank_sum, world_size=2) == [1.0, 1.0]
    inside.wait_until_idle(pool)
    assert inside.server_pid(pool) is None


def test_a_call_puts_off_the_leaving_also_where_its_time_has_come_and_closing_ends_a_frozen_server(monkeypatch):
    pool = ForkPool(leaves_after_s=300.0)
    pool.start()
    pid, folder, too_late = inside.server_pid(pool), pool.folder, pool._leaving
    pool.start()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "current_thread", lambda: too_late)
        pool._leave()
    assert too_late is not pool._leaving and inside.server_pid(pool) == pid
    os.kill(pid, signal.SIGSTOP)
    with inside.limits(closes_within_s=0.1):
        pool.close()
    assert not alive(pid) and not os.path.exists(folder)


# Frozen

def test_a_server_that_froze_between_launches_is_killed_and_replaced_by_the_next_launch():
    frozen = inside.server_pid()
    os.kill(frozen, signal.SIGSTOP)
    says = r"did not answer for . s \(the system calls it stopped\).*next launch"
    with inside.limits(lives_within_s=2.0), pytest.raises(LaunchError, match=says) as caught:
        launch(rank_sum, world_size=2)
    assert type(caught.value) is LaunchError and not alive(frozen)


def test_an_interrupt_ends_a_launch_whose_server_is_frozen(tmp_path):
    def freeze_and_spin(file):
        started = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        os.kill(os.getppid(), signal.SIGSTOP)
        file.with_suffix(".part").write_text(str(started))
        file.with_suffix(".part").rename(file)
        while True:
            pass

    file = tmp_path / "there"
    interrupt_once(file.exists)
    with pytest.raises(LaunchInterrupted, match="interrupted"):
        launch(freeze_and_spin, file, world_size=1)
    assert not alive(int(file.read_text()))
