"""One script, started by plain python and by torchrun: the same numbers.

The two nodes are those of `on_hosts`: network namespaces joined by a cable where this machine lets us make them, else
two agents of torchrun on the loopback interface.
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.runtime import HostsUnavailable, on_hosts
from course_lib.runtime.hosts import LEAVE_OUT, inside, shaping_command, why_not

pytestmark = pytest.mark.ci
_WITHIN_S = 80.0  # a watchdog: eight interpreters import torch
ROOT = Path(__file__).parents[2]


def run_script(text: str, folder: Path, *arguments: str) -> str:
    (folder / "script.py").write_text(text)
    inherited = {name: value for name, value in os.environ.items() if name not in LEAVE_OUT}
    environment = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg",
                   "TMPDIR": str(folder)}
    ran = subprocess.run([sys.executable, "script.py", *arguments], cwd=folder, env=environment,
                         capture_output=True, text=True, timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


SCRIPT = '''
import atexit, json, os, pathlib, sys

def last_of_all():
    names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]  # none but on Linux
    line = f"threads of gloo at the end: {sum('gloo' in name for name in names)}\\n"
    os.write(1, line.encode())  # in one piece: four ranks share the stream

atexit.register(last_of_all)  # what is registered first runs last
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="NoColor")  # what is imported next gives it %%ranks
import torch
import torch.distributed as dist
from course_lib.runtime import launch, record_communication, start_ranks
from tests.ranks import time_limits

def walk(num_steps):
    mine = torch.rand(3) * (dist.get_rank() + 1)  # each rank has the same seed
    for step in range(num_steps):
        total = mine.clone()
        dist.all_reduce(total)
        mine = mine + torch.rand(3) * total / dist.get_world_size()
    return mine.tolist()

def add_up():
    x = torch.full((2,), dist.get_rank() + 1.0)
    with record_communication():
        dist.all_reduce(x)
    return x.tolist()

def main():
    ends = launch(walk, 5, world_size=int(sys.argv[1]))
    sums = launch(add_up)
    if "RANK" in os.environ:
        try:
            start_ranks(4)
        except ValueError as error:
            assert "which has started the ranks already" in str(error)
    return list(ends), [list(sums), sums.communication.calls("all_reduce")]

told = main()
if "RANK" in os.environ:
    limits = launch(time_limits, timeout=1e6)
    assert limits == [{600.0}] * 4, limits
if os.environ.get("RANK", "0") == "0":
    print("told", json.dumps(told))
'''


def told_in(output: str) -> list:
    line, = (line for line in output.splitlines() if line.startswith("told "))
    return json.loads(line.removeprefix("told "))


def test_two_nodes_under_torchrun_give_the_same_numbers_as_launch_and_no_team_is_started_there(tmp_path):
    # torchrun's own number of ranks counts, and whoever asked for another is told so.
    both = on_hosts(SCRIPT, "3", timeout=_WITHIN_S)
    ends, sums = told_in(both.stdout)
    assert [ends, sums] == told_in(run_script(SCRIPT, tmp_path, "4")) and len(set(map(tuple, ends))) == 4
    assert sums == [[[10.0, 10.0]] * 4, 4]
    # One that is still there could ask for Python's lock when Python has ended, which aborts the process.
    assert both.stdout.count("threads of gloo at the end: 0") == 4, both.stdout
    assert both.stderr.count("world_size=3 was asked for, but torchrun started 4 ranks: using 4") == 1
    assert [name for name in os.listdir(tmp_path) if name.startswith("course_lib_")] == []  # the server's folder


CROSSING = """
import os, time
import torch, torch.distributed as dist
from course_lib.runtime import launch

def both():
    message, host = torch.ones(1 << 20), dist.get_rank() // 2
    times = []
    for group in (dist.new_group([2 * host, 2 * host + 1], use_local_synchronization=True), None):
        dist.all_reduce(message, group=group)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(message, group=group)
        times.append(time.perf_counter() - begin)
    return times

times = launch(both)
if os.environ["RANK"] == "0":
    print("inside and across", *times[0])
"""


@pytest.mark.skipif(why_not() is not None, reason=f"no hosts with a slow cable here: {why_not()}")
def test_a_slow_cable_is_slow_and_what_stays_on_a_host_is_not():
    rate = 10e6
    words = on_hosts(CROSSING, bytes_per_s=rate, timeout=_WITHIN_S).stdout
    inside_s, across_s = map(float, words.split("across", 1)[1].split())
    assert across_s > 0.9 * 4 * 2**20 / rate > 3 * inside_s  # 1.5 M of 4 MiB at least has to cross


def test_what_ends_badly_on_a_host_is_said_and_leaves_nothing_behind_and_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(RuntimeError, match="the reader's own mistake"):
        on_hosts("raise ValueError('the reader' + chr(39) + 's own mistake')", ranks_per_host=1)
    with pytest.raises(TimeoutError, match="not done after 3 s"):
        on_hosts("import time; time.sleep(1000)", "the-mark-of-this-test", ranks_per_host=1, timeout=3)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            assert b"the-mark-of-this-test" not in (process / "cmdline").read_bytes()
    with pytest.raises(ValueError, match="bytes_per_s=0: expected a positive number"):
        shaping_command(0)
    monkeypatch.setattr("course_lib.runtime.hosts.why_not", lambda slow: "no kernel of ours")
    with pytest.raises(HostsUnavailable, match="no kernel of ours"):
        on_hosts("", bytes_per_s=1e6)
    assert inside("true")[0] == "unshare"
