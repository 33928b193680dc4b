"""The interpreters kept warm (macOS, Windows), forced here on any platform: the same promises as forked ranks.

Starting interpreters takes seconds, so one script makes all launches, in a process of its own, and prints one line for
each claim.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHIN_S = 300.0  # a watchdog, for slow machines

SCRIPT = '''
import os, subprocess, sys, tempfile, threading, time
from pathlib import Path
import psutil, torch, torch.distributed as dist
from course_lib.runtime import Deadlock, LaunchTimeout, RankDied, RankFailed, launch
from course_lib.runtime.ranks import supervisor

def rank_sum():
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    return ranks.item(), os.getpid()

def works():
    return [total for total, _ in launch(rank_sum, world_size=2)] == [1.0, 1.0]

def claim(name, holds):
    print(name, "holds" if holds else "FAILS", flush=True)

def says(text, error, fn, *arguments, **options):
    try:
        launch(fn, *arguments, world_size=2, **options)
    except error as caught:
        return text in str(caught) or print(caught)
    return False

def raise_while_peers_wait():
    if dist.get_rank() == 1:
        raise KeyError("missing")
    dist.barrier()

def raise_all():
    raise ValueError("all")

def die():
    if dist.get_rank() == 1:
        os._exit(4)
    dist.barrier()

def leave():
    sys.exit(3)

def wait_for_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1), src=1)

def spin():
    while dist.get_rank() == 0:
        pass

def return_a_lock():
    return threading.Lock()

def talk():
    print("hello")
    print("twice", end="")

def start_things():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.closerange(0, 100)
            time.sleep(1000)
        os._exit(0)
    return [int(os.read(read, 20)), subprocess.Popen(["sleep", "1000"]).pid]

def ask_the_module():
    sys.dont_write_bytecode = True
    import beside_the_notebook
    return beside_the_notebook.answer

def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

supervisor._STILL_S = 1.0
claim("results", works())
claim("an exception names its rank",
      says("rank 1 failed at script.py", RankFailed, raise_while_peers_wait))
claim("results after an exception", works())
kept = [pid for _, pid in launch(rank_sum, world_size=2)]
claim("interpreters stay warm", [pid for _, pid in launch(rank_sum, world_size=2)] == kept)
claim("an exception of all names all", says("so did rank 1", RankFailed, raise_all))
claim("an unpicklable result", says("a _thread.lock, which cannot be sent back", RankFailed, return_a_lock))
claim("sys.exit", says("called sys.exit (exit code 3)", RankDied, leave))
launch(talk, world_size=2)
if os.name != "nt":
    left = list(filter(alive, sum(launch(start_things, world_size=2), [])))
    claim("what ranks started has ended", not left)
    for pid in left:
        print(pid, psutil.Process(pid).as_dict(["pid", "ppid", "status", "cmdline", "create_time", "environ"]))
sys.path.insert(0, os.getcwd())
module = Path("beside_the_notebook.py")
answers = []
for answer in (1, 22):
    module.write_text(f"answer = {answer}")
    answers += launch(ask_the_module, world_size=2)
module.unlink()
claim("an edited module is fresh", answers == [1, 1, 22, 22])
claim("a deadlock", says("rank 0 waits for rank 1, which has already returned", Deadlock, wait_for_nobody))
claim("a death", says("rank 1 ended with exit code 4", RankDied, die))
claim("an endless loop", says("rank 0  is at script.py", LaunchTimeout, spin, timeout=1.5))
claim("results after all that", works())
descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
works()
claim("no descriptor is left", sys.platform != "linux" or len(os.listdir("/proc/self/fd")) == descriptors)
'''


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("warm")
    temporary = tmp_path_factory.mktemp("temporary")
    (folder / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COURSE_LIB_LAUNCHER": "warm",
                   "TMPDIR": str(temporary)}
    environment.pop("PYTEST_CURRENT_TEST", None)
    ran = subprocess.run([sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True,
                         timeout=_WITHIN_S)
    assert ran.returncode == 0, ran.stderr
    left = [path for path in temporary.rglob("*") if not path.name.startswith("torchinductor_")]  # torch's own cache
    return ran.stdout + "".join(f"left: {path}\n" for path in left)


def test_warm_interpreters_keep_every_promise_of_launch(printed):
    claims = [line for line in printed.splitlines() if line.endswith((" holds", " FAILS"))]
    assert [line for line in claims if line.endswith("FAILS")] == [], printed
    assert len(claims) == (14 if os.name != "nt" else 13), printed


def test_output_of_warm_ranks_is_whole_and_named(printed):
    lines = [line for line in printed.splitlines() if line.startswith("[rank")]
    assert sorted(lines) == ["[rank 0] hello", "[rank 0] twice", "[rank 1] hello", "[rank 1] twice"]


def test_no_temporary_file_is_left_when_the_notebook_ends(printed):
    assert [line for line in printed.splitlines() if line.startswith("left: ")] == []
