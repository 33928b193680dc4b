"""launch keeps its promises: the right error naming the right rank, nothing left behind, and the next launch works.

The faults themselves are in tests/faults/kinds.py. How soon each error comes is measured by tests/faults/soak.py.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import Deadlock, RankDied, RankFailed, launch, launcher, testing
from course_lib.runtime.ranks import asking
from tests.faults.kinds import IN_LAUNCH, Plan, complaints, inject
from tests.faults.traces import alive, traces

# As in a notebook, where ranks cannot import what a cell defines.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, or forks")


@pytest.fixture(scope="module", autouse=True)
def server():
    launcher.pool().wait_for_preload()


@pytest.fixture(autouse=True)
def nothing_is_left(server, tmp_path, monkeypatch):
    """Around each test; afterwards the next launch works, and no process, socket or file of the test is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the ranks' temporary folder
    before = traces(launcher.pool().folder, tmp_path)
    yield
    assert launch(rank_sum, world_size=2) == [1.0, 1.0]
    assert traces(launcher.pool().folder, tmp_path).since(before) == []


@pytest.fixture
def soon():
    """A deadlock is called one after a second: nothing in these tests stands still for so long by chance."""
    with testing.limits(still_s=1.0, lives_within_s=2.0):
        yield


def rank_sum():
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    return ranks.item()


# Every kind of fault

@pytest.mark.sweep("kind", few=IN_LAUNCH[::2], all=IN_LAUNCH, words=f"every second fault of {len(IN_LAUNCH)}")
def test_each_kind_of_fault_ends_in_its_own_error_that_names_the_culprit(kind, soon):
    number = IN_LAUNCH.index(kind)
    plan = Plan(culprit=number // 2 % 3, step=number % 4)
    assert complaints(kind, plan, inject(kind, plan)) == []


def test_many_lines_arrive_while_peers_print_as_well(capfd):
    def talk():
        for line in range(2000):
            print(line, file=sys.stderr if line % 2 else sys.stdout)

    launch(talk, world_size=3)
    out, err = capfd.readouterr()
    for rank in range(3):
        mine = [line for line in out.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert mine == [f"[rank {rank}] {line}" for line in range(0, 2000, 2)]
        assert err.count(f"[rank {rank}] ") == 1000


# Who is to blame

class SpeedLimit(Exception):
    """Two arguments, one of them keyword-only: pickle alone cannot rebuild it."""

    def __init__(self, given, *, limit):
        super().__init__(f"{given} is above {limit}")
        self.limit = limit


def test_the_raiser_is_told_with_its_cause_and_not_its_victims_and_what_all_raise_once():
    def fail(culprits):
        if dist.get_rank() in culprits:
            raise KeyError("missing" + " piece")
        dist.all_reduce(torch.ones(2))

    for culprits, told in (((2,), "rank 2 failed"), ((0, 1, 2), "so did ranks 1 and 2")):
        with pytest.raises(RankFailed, match=told) as caught:
            launch(fail, culprits, world_size=3)
        assert caught.value.rank == culprits[0] and isinstance(caught.value.cause, KeyError)
        assert str(caught.value).count("missing piece") == 1
        assert ("so did" in str(caught.value)) == (len(culprits) > 1)


def test_the_line_of_the_readers_code_is_named_and_the_traceback_is_the_readers_own():
    def inner():
        return torch.ones(2) @ torch.ones(3)

    def outer():
        return inner()

    with pytest.raises(RankFailed) as caught:
        launch(outer, world_size=2)
    line = inner.__code__.co_firstlineno + 1
    assert f"test_faults.py, line {line}" in str(caught.value)
    assert "in outer" in str(caught.value) and "supervisor.py" not in str(caught.value)


def test_an_exception_of_the_readers_class_comes_back_as_itself_or_as_text_with_its_notes():
    class Own(Exception):
        pass

    def raise_own(stubborn):
        error = SpeedLimit(9, limit=5) if stubborn else Own("mine")
        error.add_note("it was meant in metres")
        raise error

    with pytest.raises(RankFailed, match="Own: mine\n *it was meant in metres") as caught:
        launch(raise_own, False, world_size=1)
    assert caught.value.cause.args == ("mine",)
    with pytest.raises(RankFailed, match="SpeedLimit: 9 is above 5\n *it was meant in metres"):
        launch(raise_own, True, world_size=1)


def test_a_rank_that_aborts_over_mismatched_sizes_tells_its_line_and_the_likely_cause():
    def step():
        dist.all_reduce(torch.ones(1000 if dist.get_rank() else 4))

    with pytest.raises(RankDied, match="SIGABRT(.*\n)*.*crashed at .*_faults.py(.*\n)*.*different size"):
        launch(step, world_size=2)


def test_the_words_of_sys_exit_are_told():
    with pytest.raises(RankDied, match=r"rank 0 called sys.exit \(exit code 1\)(.*\n)*  no data") as caught:
        launch(sys.exit, "no data", world_size=1)
    assert (caught.value.rank, caught.value.exit_code) == (0, 1)


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

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((4,), float(index))


def load_with_workers():
    """An iterator that keeps its workers, and the workers' process ids."""
    batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2))
    next(batches)
    return batches, [worker.pid for worker in batches._workers]


def start_a_daemon():
    """Fork twice and leave the session, as daemons do; returns the daemon's process id."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.closerange(0, 100)
            time.sleep(1000)
        os._exit(0)
    return int(os.read(read, 20))


@pytest.mark.parametrize("fails", [False, True])
def test_dataloader_workers_threads_and_daemons_do_not_outlive_a_rank_however_it_ends(fails, tmp_path):
    def step(file):
        batches, workers = load_with_workers()
        threading.Thread(target=time.sleep, args=(1000,)).start()
        started = subprocess.Popen(["sleep", "1000"])
        file.write_text(" ".join(map(str, [*workers, started.pid, start_a_daemon()])))
        if fails:
            raise RuntimeError("now")

    with pytest.raises(RankFailed, match="RuntimeError: now") if fails else nullcontext():
        launch(step, tmp_path / "pids", world_size=1)
    pids = (tmp_path / "pids").read_text().split()
    (tmp_path / "pids").unlink()
    assert len(pids) == 4 and not any(alive(int(pid)) for pid in pids)


def test_a_temporary_folder_of_a_rank_goes_with_it():
    def step():
        global folder  # alive until the interpreter ends
        folder = tempfile.TemporaryDirectory()
        return folder.name

    assert not any(Path(name).exists() for name in launch(step, world_size=2))


def test_a_rank_killed_while_its_dataloader_workers_live_is_still_noticed():
    def step():
        batches, _ = load_with_workers()
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        dist.barrier()

    with pytest.raises(RankDied, match="rank 1 was killed by SIGKILL"):
        launch(step, world_size=2)


# What goes in and what comes out

@pytest.mark.ci
def test_names_of_a_script_make_the_round_trip_and_its_server_goes_with_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, timeout=80)
    assert ran.stdout.splitlines() == ["once", "True"], ran.stderr
    assert os.listdir(tmp_path) == ["script.py"]  # it was the script's temporary folder, too
    script.unlink()


SCRIPT = """
print("once")
from dataclasses import dataclass
from course_lib.runtime import launch
import torch.distributed as dist

@dataclass
class Who:
    rank: int

def who():
    return Who(dist.get_rank())

print(launch(who, world_size=2) == [Who(0), Who(1)])
"""


def test_a_module_beside_the_notebook_that_was_edited_is_seen_fresh(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

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
    gate, ask = str(tmp_path / "gate"), asking.LaunchRanks._ask_and_wait

    def open_and_ask(ranks, heed):
        open(gate, "w").close()
        while not ranks.all_returned:
            heed(*ranks.events.get(timeout=30))
        return ask(ranks, heed)

    def wait_for_gate():
        while not os.path.exists(gate):
            time.sleep(0.01)
        return dist.get_rank()

    monkeypatch.setattr(asking.LaunchRanks, "_ask_and_wait", open_and_ask)
    assert list(launch(wait_for_gate, world_size=2, timeout=0.5)) == [0, 1]
    os.remove(gate)
