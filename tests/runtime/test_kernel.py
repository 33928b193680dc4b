"""launch in a real Jupyter kernel: where errors point, what they look like, interrupts, kills and live output."""

import os
import sys
import time

import pytest

from tests.faults.traces import alive
from tests.runtime.conftest import FIRST_CELL
from tools.harness.kernel import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills kernels and looks into /proc")

_WITHIN_S = 60.0  # a watchdog, not a claim

RANK_SUM = """
def rank_sum():
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    return ranks.item()

launch(rank_sum, world_size=2)
"""


@pytest.fixture(autouse=True)
def the_next_launch_works(kernel):
    yield
    assert kernel.run(RANK_SUM).value == "[1.0, 1.0]"


def test_an_error_names_the_cell_and_the_line_in_a_few_lines_of_text(kernel):
    number = kernel.run("def divide(by):\n"
                        "    if dist.get_rank() == 1:\n"
                        "        return 1 / by\n"
                        "    dist.barrier()").number
    error = kernel.run("launch(divide, 0, world_size=2)").error
    assert error["ename"] == "RankFailed"
    told = "\n".join(error["traceback"])
    assert told == (f"RankFailed: rank 1 failed at cell In[{number}], line 3\n"
                    "    return 1 / by\n"
                    "  ZeroDivisionError: division by zero")


def test_functions_of_several_cells_are_told_as_a_traceback_of_cells(kernel):
    number = kernel.run("def inner():\n    raise ValueError('no such layer')").number
    told = "\n".join(kernel.run("def outer():\n    inner()\n\nlaunch(outer, world_size=1)").error["traceback"])
    assert f"rank 0 failed at cell In[{number}], line 2" in told
    assert f"cell In[{number + 1}], line 2 in outer" in told
    assert "launcher.py" not in told and len(told.splitlines()) <= 8


def test_an_exception_class_of_a_cell_is_told_by_its_name_and_comes_back_as_cause(kernel):
    kernel.run("class OutOfBudget(Exception):\n    pass\n\ndef spend():\n    raise OutOfBudget(3)")
    reply = kernel.run("try:\n    launch(spend, world_size=1)\n"
                       "except Exception as error:\n    print(type(error.cause) is OutOfBudget, error.cause.args)")
    assert reply.printed() == "True (3,)\n"


def test_a_deadlock_points_at_cells(kernel):
    reply = kernel.run("def lonely():\n    if dist.get_rank() == 0:\n        dist.recv(torch.zeros(4), src=1)\n\n"
                       "launch(lonely, world_size=2)")
    told = "\n".join(reply.error["traceback"])
    assert reply.error["ename"] == "Deadlock"
    assert f"rank 0  waits at cell In[{reply.number}], line 3:  dist.recv(torch.zeros(4), src=1)" in told
    assert "rank 0 waits for rank 1, which has already returned" in told


def test_output_appears_while_the_ranks_still_run(kernel, tmp_path):
    go_on = tmp_path / "go_on"
    code = f"""
def talk():
    print("hello")
    print("complaint", file=sys.stderr)
    while not os.path.exists({str(go_on)!r}):
        time.sleep(0.01)

launch(talk, world_size=2)
"""
    def look(reply):
        out, err = reply.printed("stdout"), reply.printed("stderr")
        if all(f"[rank {r}] hello\n" in out and f"[rank {r}] complaint\n" in err for r in (0, 1)):
            go_on.touch()  # only now may the ranks return

    assert kernel.run(code, each=look).error is None and go_on.exists()


def test_while_pytest_runs_output_comes_in_rank_order(kernel):
    code = """
os.environ["PYTEST_CURRENT_TEST"] = "as under nbval"

def talk():
    for rank in reversed(range(3)):  # rank 2 speaks first
        if dist.get_rank() == rank:
            print("hello")
            print("again")
        dist.barrier()

launch(talk, world_size=3)
del os.environ["PYTEST_CURRENT_TEST"]
"""
    expected = "".join(f"[rank {rank}] hello\n[rank {rank}] again\n" for rank in range(3))
    assert kernel.run(code).printed() == expected


@pytest.mark.parametrize("forever", ["while True: pass", "sum(range(10**12))"])  # the second keeps the interpreter
def test_interrupting_what_does_not_end_tells_where_each_rank_was(kernel, forever):
    code = f"""def spin():
    print("spinning")
    {forever}

launch(spin, world_size=2)"""
    reply = kernel.interrupt_once(code, lambda reply: reply.printed().count("spinning") == 2)
    told = "\n".join(reply.error["traceback"])
    assert reply.error["ename"] == "LaunchInterrupted" and len(told.splitlines()) == 3
    assert all(f"rank {rank}  was at cell In[{reply.number}], line " in told for rank in (0, 1))


LAUNCH = """
def spin_or_wait():
    print("ready")
    if dist.get_rank() == 0:
        while True:
            pass
    dist.recv(torch.zeros(1), src=0)

launch(spin_or_wait, world_size=2)
"""
CELL = "%%ranks\nprint('ready')\nwhile True: pass"


@pytest.mark.parametrize("busy", [LAUNCH, pytest.param(CELL, marks=pytest.mark.ci)], ids=["launch", "cell"])
def test_a_kernel_that_is_killed_takes_its_ranks_its_team_and_their_servers_along(busy, tmp_path):
    with Kernel(TMPDIR=str(tmp_path)) as kernel:
        kernel.run(f"{FIRST_CELL}\nfrom course_lib.runtime import launch, start_ranks\nteam = start_ranks(2)")
        started = []

        def look(reply):
            if reply.printed().count("ready") == 2:
                started.extend(kernel.descendants())
                kernel.kill()
                raise InterruptedError

        with pytest.raises(InterruptedError):
            kernel.run(busy, each=look)
        assert len(started) >= (6 if busy == LAUNCH else 4)  # two servers, two ranks of the team, two of the launch
        deadline = time.monotonic() + _WITHIN_S
        while any(map(alive, started)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in started if alive(pid)] == []
    assert [name for name in os.listdir(tmp_path) if name.startswith("course_lib_")] == []
