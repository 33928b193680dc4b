"""launch in a real Jupyter kernel: where errors point, what they look like, interrupts, kills and live output."""

import os
import sys
import time

import pytest

from tests.faults.traces import alive
from tests.runtime.conftest import FIRST_CELL
from tools.harness.kernel import Kernel, Reply

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills kernels and looks into /proc")

_WITHIN_S = 60.0  # a watchdog, not a claim


@pytest.fixture(autouse=True)
def the_next_launch_works(kernel):
    yield
    assert kernel.run("from tests.faults.kinds import rank_sum\nlaunch(rank_sum, world_size=2)").value == "[1.0, 1.0]"


LONELY = "def lonely():\n    if dist.get_rank() == 0:\n        dist.recv(torch.zeros(4), src=1)"
DIVIDE = "def divide(by):\n    if dist.get_rank() == 1:\n        return 1 / by\n    dist.barrier()"
DIVIDED = "RankFailed: rank 1 failed at cell In[{0}], line 3\n    return 1 / by\n  ZeroDivisionError: division by zero"


@pytest.mark.parametrize("defines, calls, expected, most_lines", [
    (DIVIDE, "launch(divide, 0, world_size=2)", [DIVIDED], 3),
    ("def inner():\n    raise ValueError('no such layer')", "def outer():\n    inner()\n\nlaunch(outer, world_size=1)",
     ["rank 0 failed at cell In[{0}], line 2", "cell In[{1}], line 2 in outer"], 8),
    (LONELY, "launch(lonely, world_size=2)",
     ["Deadlock: ", "rank 0  waits at cell In[{0}], line 3:  dist.recv(torch.zeros(4), src=1)",
      "rank 0 waits for rank 1, which has already returned"], 8),
], ids=["an error", "functions of two cells", "a deadlock"])
def test_an_error_names_the_cells_and_their_lines_in_a_few_lines_of_text(kernel, defines, calls, expected, most_lines):
    number, reply = kernel.run(defines).number, kernel.run(calls)
    assert all(words.format(number, reply.number) in reply.told() for words in expected), reply.told()
    assert "launcher.py" not in reply.told() and len(reply.told().splitlines()) <= most_lines


def test_output_appears_while_the_ranks_still_run(kernel, tmp_path):
    go_on, reply = tmp_path / "go_on", Reply()
    code = f"""
def talk():
    print("hello")
    print("complaint", file=sys.stderr)
    while not os.path.exists({str(go_on)!r}):
        time.sleep(0.01)

launch(talk, world_size=2)
"""
    for _ in kernel.watch(code, reply):
        out, err = reply.printed("stdout"), reply.printed("stderr")
        if all(f"[rank {r}] hello\n" in out and f"[rank {r}] complaint\n" in err for r in (0, 1)):
            go_on.touch()  # only now may the ranks return
    assert reply.error is None and go_on.exists()


def test_while_pytest_runs_output_comes_in_rank_order(kernel):
    reply = kernel.run("""
os.environ["PYTEST_CURRENT_TEST"] = "as under nbval"

def talk():
    for rank in reversed(range(3)):  # rank 2 speaks first
        if dist.get_rank() == rank:
            print("hello\\nagain")
        dist.barrier()

launch(talk, world_size=3)
del os.environ["PYTEST_CURRENT_TEST"]
""")
    assert reply.printed() == "".join(f"[rank {rank}] hello\n[rank {rank}] again\n" for rank in range(3))


@pytest.mark.parametrize("forever", ["while True: pass", "sum(range(10**12))"])  # the second keeps the interpreter
def test_interrupting_what_does_not_end_tells_where_each_rank_was(kernel, forever):
    code = f"def spin():\n    print('spinning')\n    {forever}\n\nlaunch(spin, world_size=2)"
    reply = kernel.interrupt_once(code, lambda reply: reply.printed().count("spinning") == 2)
    assert reply.error["ename"] == "LaunchInterrupted" and len(reply.told().splitlines()) == 3
    assert all(f"rank {rank}  was at cell In[{reply.number}], line " in reply.told() for rank in (0, 1))


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
        reply, started = Reply(), []
        for _ in kernel.watch(busy, reply):
            if reply.printed().count("ready") == 2:
                started = kernel.descendants()
                kernel.kill()
                break
        assert len(started) >= (6 if busy == LAUNCH else 4)  # two servers, two ranks of the team, two of the launch
        deadline = time.monotonic() + _WITHIN_S
        while any(map(alive, started)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [pid for pid in started if alive(pid)] == []
    assert [name for name in os.listdir(tmp_path) if name.startswith("course_lib_")] == []
