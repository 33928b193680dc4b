"""launch and %%ranks in a real Jupyter kernel: where errors point, what they look like, values, interrupts, kills."""

import os
import re
import sys
import time

import pytest

from tests.faults.traces import alive
from tests.runtime.conftest import FIRST_CELL
from tools.harness.kernel import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills kernels and looks into /proc")

_WITHIN_S = 60.0  # a watchdog, not a claim


@pytest.fixture(scope="module", autouse=True)
def team(kernel):
    assert kernel.run("%%ranks\n1").told() == (
        "RanksUsageError: %%ranks runs its cell in ranks that stay, and there are none. Start them in "
        "a cell of their own: team = start_ranks(world_size=4)")
    assert kernel.run("from tests.faults.kinds import rank_sum\nteam = start_ranks(world_size=3)").error is None
    kernel.run("%%ranks\nr = dist.get_rank()\nkept = 3 * r")
    yield
    kernel.run("team.close()")


@pytest.fixture(autouse=True)
def the_next_launch_and_the_next_cell_work_and_all_is_kept(kernel):
    yield
    assert kernel.run("launch(rank_sum, world_size=2)").value == "[1.0, 1.0]"
    reply = kernel.run("list(team.run(rank_sum)), team.pull('kept'), team.alive")
    assert reply.value == "([3.0, 3.0, 3.0], [0, 3, 6], [0, 1, 2])"


LONELY = "def lonely():\n    if dist.get_rank() == 0:\n        dist.recv(torch.zeros(4), src=1)"
DIVIDE = "def divide(by):\n    if dist.get_rank() == 1:\n        return 1 / by\n    dist.barrier()"
DIVIDED = "RankFailed: rank 1 failed at cell In[{0}], line {1}\n    {2}\n  ZeroDivisionError: division by zero"
KEPT = "All ranks live, and keep what they hold."


@pytest.mark.parametrize("defines, calls, expected, most_lines", [
    (DIVIDE, "launch(divide, 0, world_size=2)", [DIVIDED.format("{0}", 3, "return 1 / by")], 3),
    ("def inner():\n    raise ValueError('no such layer')", "def outer():\n    inner()\n\nlaunch(outer, world_size=1)",
     ["rank 0 failed at cell In[{0}], line 2", "cell In[{1}], line 2 in outer"], 8),
    (LONELY, "launch(lonely, world_size=2)",
     ["Deadlock: ", "rank 0  waits at cell In[{0}], line 3:  dist.recv(torch.zeros(4), src=1)",
      "rank 0 waits for rank 1, which has already returned"], 8),
    ("1", "%%ranks\nmended = 41\nif r == 1:\n    1 / 0\ndist.barrier()",
     [DIVIDED.format("{1}", 4, "1 / 0") + f"\n  {KEPT}"], 5),
    ("1", "\n\n%%ranks\n\nundefined_name", ["failed at cell In[{1}], line 5"], 8),
    ("%%ranks\ndef fail():\n    raise ValueError('inside')", "%%ranks\nfail()",
     ["failed at cell In[{0}], line 3", "cell In[{1}], line 2"], 10),
    ("1", "%%ranks\nif r == 0:\n    dist.recv(torch.zeros(4), src=1)",
     ["Deadlock: ", "rank 0  waits at cell In[{1}], line 3:  dist.recv(torch.zeros(4), src=1)", KEPT], 10),
], ids=["an error", "functions of two cells", "a deadlock", "an error in ranks that stay", "lines above the cell",
        "a function of another cell", "a deadlock in ranks that stay"])
def test_an_error_names_the_cells_and_their_lines_in_a_few_lines_of_text(kernel, defines, calls, expected, most_lines):
    number, reply = kernel.run(defines).number, kernel.run(calls)
    assert all(words.format(number, reply.number) in reply.told() for words in expected), reply.told()
    assert len(reply.told().splitlines()) <= most_lines
    assert "launcher.py" not in reply.told() and "namespace.py" not in reply.told()
    if "mended" in calls:
        assert kernel.run("%%ranks\nmended + 1").value == "ranks 0 to 2: 42"


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


# In one line, or an interrupt could still meet the print above it.
SPIN = "def spin():\n    pass\n    while not print('there'): {}\n\nlaunch(spin, world_size=3)"
CELL = "%%ranks\npass\nwhile not print('there'): {}"
FOR_EVER = "all(True for _ in iter(int, 1))"


@pytest.mark.parametrize("code, lines", [
    (SPIN.format(FOR_EVER), 4), (SPIN.format("sum(range(10**12))"), 4),  # the second keeps the interpreter
    (CELL.format(FOR_EVER), 12), (CELL.format("time.sleep(1000)"), 12),
    (CELL.format("dist.barrier() if r else time.sleep(99)"), 12)])
def test_interrupting_what_does_not_end_tells_where_each_rank_was(kernel, code, lines):
    reply = kernel.interrupt_once(code, lambda reply: reply.printed().count("there") == 3)
    assert reply.error["ename"] == "LaunchInterrupted" and len(reply.told().splitlines()) <= lines
    places = re.findall(rf"rank (\d)  was at cell In\[{reply.number}\], line 3", reply.told())
    assert places == ["0", "1", "2"], reply.told()
    assert ("All ranks live" in reply.told()) == code.startswith("%%ranks")


LAUNCH = """
def spin_or_wait():
    print("ready")
    if dist.get_rank() == 0:
        while True:
            pass
    dist.recv(torch.zeros(1), src=0)

launch(spin_or_wait, world_size=2)
"""
BUSY_CELL = "%%ranks\nprint('ready')\nwhile True: pass"


@pytest.mark.parametrize("busy", [LAUNCH, pytest.param(BUSY_CELL, marks=pytest.mark.ci)], ids=["launch", "cell"])
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


# In ranks that stay

def test_a_cell_runs_in_each_rank_prints_with_the_rank_and_gives_its_last_value(kernel):
    reply = kernel.run("%%ranks\nprint('hello', r)\nr * 10")
    assert reply.value == "rank 0: 0\nrank 1: 10\nrank 2: 20"
    assert sorted(reply.printed().splitlines()) == [f"[rank {rank}] hello {rank}" for rank in range(3)]
    assert kernel.run("%%ranks 0, 2\nr").value == "rank 0: 0\nrank 2: 2"
    assert kernel.run("%%ranks 1,2\nr;").value is None
    # as an exported notebook calls it
    assert kernel.run('get_ipython().run_cell_magic("ranks", "1", "r")').value == "rank 1: 1"


def test_what_cannot_run_is_refused_before_any_rank_begins(kernel, snapshot):
    assert kernel.run("%%ranks\nfor").error["ename"] == "SyntaxError"
    errors = [kernel.run(f"%%ranks {line}\n1").error for line in ("0,x", "-1", "7")]
    assert "\n".join(error["evalue"] for error in errors) == snapshot


@pytest.mark.parametrize("end", ["plt.show()", "None", "plt.gcf()", "1 / 0"],
                         ids=["shown", "left open", "the value", "fails"])
def test_a_picture_of_a_rank_is_shown_once_under_the_cell_also_where_that_fails(kernel, end):
    reply = kernel.run(f"%%ranks 1\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n{end}")
    assert (reply.error is not None) == (end == "1 / 0")
    assert len(reply.shown) == 1 and "<img" in reply.shown[0]["text/html"]
    assert kernel.run("%%ranks 1\nplt.get_fignums()").value == "rank 1: []"
