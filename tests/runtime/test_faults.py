"""launch keeps its promises: the right error naming the right rank, nothing left behind, and the next launch works.

The faults themselves are in tests/faults/kinds.py. How soon each error comes is measured by tests/faults/soak.py.
"""

import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import Deadlock, RankDied, RankFailed, launch, launcher
from course_lib.runtime.ranks import crew
from tests.faults import inside
from tests.faults.kinds import FEW_IN_LAUNCH, IN_LAUNCH, Plan, complaints, inject, rank_sum, start_a_daemon
from tests.faults.traces import alive, traces

# As in a notebook, where ranks cannot import what a cell defines.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, or forks")


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Around each test; afterwards the next launch works, and no process, socket or file of the test is left."""
    launcher.pool().wait_for_preload()
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the ranks' temporary folder
    before = traces(launcher.pool().folder, tmp_path)
    yield
    assert launch(rank_sum, world_size=2) == [1.0, 1.0]
    assert traces(launcher.pool().folder, tmp_path).since(before) == []


@pytest.fixture
def soon():
    """A deadlock is called one after a second: nothing in these tests stands still for so long by chance."""
    with inside.limits(still_s=1.0, lives_within_s=2.0):
        yield


@pytest.mark.sweep("kind", few=FEW_IN_LAUNCH, all=IN_LAUNCH, words=f"{len(FEW_IN_LAUNCH)} faults of {len(IN_LAUNCH)}")
def test_each_kind_of_fault_ends_in_its_own_error_that_names_the_culprit(kind, soon):
    number = IN_LAUNCH.index(kind)
    plan = Plan(culprit=number // 2 % 3, step=number % 4)
    assert complaints(kind, plan, inject(kind, plan)) == []


# Who is to blame

class SpeedLimit(Exception):
    """Two arguments, one of them keyword-only: pickle alone cannot rebuild it."""

    def __init__(self, given, *, limit):
        super().__init__(f"{given} is above {limit}")


class Own(Exception):
    pass


def fail_in(culprits):
    if dist.get_rank() in culprits:
        raise KeyError("missing" + " piece")
    dist.all_reduce(torch.ones(2))


def multiply():
    return torch.ones(2) @ torch.ones(3)


def raise_with_note(error):
    error.add_note("it was meant in metres")
    raise error


def mismatched_sizes():
    dist.all_reduce(torch.ones(1000 if dist.get_rank() else 4))


LINE = multiply.__code__.co_firstlineno + 1


@pytest.mark.parametrize("fault, error, told", [
    (lambda: fail_in([2]), RankFailed, "rank 2 failed(.*\n)* *KeyError: 'missing.piece'"),
    (lambda: fail_in([0, 1, 2]), RankFailed, "rank 0 failed .*so did ranks 1 and 2(.*\n)* *KeyError: 'missing.piece'"),
    (lambda: multiply(), RankFailed, f"test_faults.py, line {LINE}(.*\n)*.* in multiply"),
    (lambda: raise_with_note(Own("mine")), RankFailed, "Own: mine\n *it was meant in metres"),
    (lambda: raise_with_note(SpeedLimit(9, limit=5)), RankFailed, "mit: 9 is above 5\n *it was meant in metres"),
    (mismatched_sizes, RankDied, "SIGABRT(.*\n)*.*crashed at .*_faults.py(.*\n)*.*different size"),
    (lambda: sys.exit("no data"), RankFailed, r"rank \d failed(.*\n)*  SystemExit: no data"),
])
def test_the_raiser_is_told_with_its_line_and_cause_once_and_neither_its_victims_nor_the_courses_lines(
        fault, error, told):
    with pytest.raises(error, match=told) as caught:
        launch(fault, world_size=3)
    assert str(caught.value).count("missing piece") <= 1 and "supervisor.py" not in str(caught.value)
    if "rank 2 failed" in told:
        assert "so did" not in str(caught.value) and isinstance(caught.value.cause, KeyError)
    if "Own" in told:
        assert type(caught.value.cause) is Own and caught.value.cause.args == ("mine",)


def test_a_deadlock_between_threads_of_a_rank_is_found_and_one_that_a_thread_resolves_is_not(soon):
    def receive_in_a_thread(sends):
        def receive():
            dist.recv(torch.zeros(1), src=1 - dist.get_rank())

        thread = threading.Thread(target=receive)
        thread.start()
        if sends:
            time.sleep(1.5)
            dist.send(torch.ones(1), dst=1 - dist.get_rank())
        else:
            dist.recv(torch.zeros(1), src=1 - dist.get_rank(), tag=1)
        thread.join()
        return "done"

    assert launch(receive_in_a_thread, True, world_size=2) == ["done", "done"]
    with pytest.raises(Deadlock):
        launch(receive_in_a_thread, False, world_size=2)


# What ranks start

@pytest.mark.parametrize("fails", [False, True])
def test_workers_threads_daemons_and_temporary_folders_do_not_outlive_a_rank_however_it_ends(fails, tmp_path):
    def step(file):
        global folder  # alive until the interpreter ends
        folder = tempfile.TemporaryDirectory()
        batches = iter(torch.utils.data.DataLoader(range(1000), batch_size=2, num_workers=2))
        next(batches)
        threading.Thread(target=time.sleep, args=(1000,)).start()
        started = subprocess.Popen(["sleep", "1000"])
        file.write_text(" ".join(map(str, [*(worker.pid for worker in batches._workers), started.pid,
                                                start_a_daemon()])))
        if fails:
            raise RuntimeError("now")

    with pytest.raises(RankFailed, match="RuntimeError: now") if fails else nullcontext():
        launch(step, tmp_path / "pids", world_size=1)
    pids = (tmp_path / "pids").read_text().split()
    (tmp_path / "pids").unlink()
    assert len(pids) == 4 and not any(alive(int(pid)) for pid in pids)


# What goes in and what comes out

def test_a_module_beside_the_notebook_that_was_edited_is_seen_fresh(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def ask():
        sys.dont_write_bytecode = True
        import beside_the_notebook

        return beside_the_notebook.answer

    module = tmp_path / "beside_the_notebook.py"
    for answer in (1, 22):
        module.write_text(f"answer = {answer}")
        assert launch(ask, world_size=2) == [answer, answer]
    module.unlink()


def test_launch_works_in_a_thread_and_two_at_once_take_turns():
    results = {}

    def in_thread(name):
        results[name] = launch(lambda: (name, rank_sum()), world_size=2)

    threads = [threading.Thread(target=in_thread, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: [(name, 1.0), (name, 1.0)] for name in "ab"}


def test_ranks_that_return_while_they_are_asked_where_they_are_were_not_late(tmp_path, monkeypatch):
    gate, ask = tmp_path / "gate", crew.LaunchRanks._ask_and_wait

    def open_and_ask(ranks, heed):
        gate.touch()
        while ranks.unfinished_ranks():
            heed(*ranks.events.get(timeout=30))
        return ask(ranks, heed)

    def wait_for_gate():
        while not gate.exists():
            time.sleep(0.01)
        return dist.get_rank()

    monkeypatch.setattr(crew.LaunchRanks, "_ask_and_wait", open_and_ask)
    assert list(launch(wait_for_gate, world_size=2, timeout=0.5)) == [0, 1]
    gate.unlink()
