"""What goes wrong in ranks that stay, as cells: the error that must come of each, and which ranks must live on.

Three ranks, in the middle of a session: each has made `kept`, `r` (its rank) and `pair`, a group of ranks 0 and 2. Rank
1 is the culprit. tests/runtime/test_team_faults.py runs them all, one after the other, in one team for as long as its
ranks live.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout, RankDied, RankFailed, Team
from course_lib.runtime.errors import LaunchInterrupted

ALL, NOBODY = (0, 1, 2), ()
SURVIVORS = (0, 2)
SESSION = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
r = dist.get_rank()
kept = torch.full((3,), 11.0 * r)
pair = dist.new_group([0, 2])
for _ in range(3):
    dist.all_reduce(torch.ones(2))
"""
GOES_ON = "x = torch.tensor([float(r)])\ndist.all_reduce(x)\nx.item()"


@dataclass(frozen=True)
class TeamFault:
    """`cell` runs in all ranks; `error` and `says` must come of it, and `alive` ranks keep what they hold."""

    cell: str
    error: type[BaseException] | None = RankFailed
    says: str = ""
    alive: tuple[int, ...] = ALL
    timeout_s: float = 60.0  # of a call; what never ends uses it up


@contextmanager
def time_limit(team: Team, seconds: float) -> Iterator[None]:
    """Of the calls inside alone: those that must work have no limit that a busy machine could miss."""
    crew = team._ranks.crew
    before, crew.task = crew.task, replace(crew.task, timeout_s=seconds)
    try:
        yield
    finally:
        crew.task = before


def one(culprit: str, peers: str = "dist.barrier()") -> str:
    """A cell in which rank 1 does this, and its peers do something else."""
    return f"if r == 1:\n    {culprit}\nelse:\n    {peers}"


LONG, SHORT_S = "time.sleep(1000)", 1.5
TEAM_FAULTS = {
    # Errors of Python: all is kept
    "exception": TeamFault(one("raise ArithmeticError('not a number')"), says="not a number"),
    "exception in all": TeamFault("raise ValueError('empty batch')", says="so did ranks 1 and 2"),
    "exception where peers return": TeamFault(one("raise KeyError('missing')", "pass"), says="rank 1 failed"),
    "exception where peers are in a group of theirs": TeamFault(
        one("raise KeyError('missing')", "dist.all_reduce(torch.ones(2), group=pair)"), says="rank 1 failed"),
    "exception where peers compute": TeamFault(one("raise KeyError('missing')", LONG), says="rank 1 failed"),
    "unknown name": TeamFault("not_there", says="NameError"),
    "failed assertion": TeamFault(one("assert r == 2, 'wrong rank'"), says="wrong rank"),
    "shapes that do not fit": TeamFault("torch.ones(2) @ torch.ones(3)", says="RuntimeError"),
    "unprintable exception": TeamFault(
        "class Mute(Exception):\n    def __str__(self):\n        raise LookupError('no words')\n\n" + one("raise Mute"),
        says="its __str__ raised LookupError"),
    "endless recursion": TeamFault("def again():\n    again()\n\n" + one("again()"), says="more of these"),
    "exception group": TeamFault(one("raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])"), says="KeyError"),
    "KeyboardInterrupt of its own": TeamFault(one("raise KeyboardInterrupt"), says="KeyboardInterrupt"),
    "too much memory": TeamFault(one("bytearray(10**15)"), says="MemoryError"),
    "value that cannot be printed": TeamFault(
        "class Mute:\n    def __repr__(self):\n        raise LookupError('no words')\n\nMute()", says="no words"),
    "input from nobody": TeamFault(one("input()"), says="EOFError"),
    "breakpoint for nobody": TeamFault(one("breakpoint()"), says="here nobody can"),
    "sys.exit": TeamFault(one("sys.exit(3)"), RankDied, "called sys.exit (exit code 3)"),
    "message never received": TeamFault(one("sent = dist.isend(torch.ones(4), dst=0); raise KeyError('k')", "pass")),
    "message never sent": TeamFault(one("coming = dist.irecv(torch.ones(4), src=0); raise KeyError('k')", "pass")),
    "group destroyed": TeamFault(one("dist.destroy_process_group()")),
    # What hangs in communication: all is kept
    "recv nobody answers": TeamFault(one("dist.recv(torch.zeros(4), src=2)", "pass"), Deadlock, "rank 1  waits"),
    "mismatched collectives": TeamFault(one("dist.barrier()", "dist.all_reduce(torch.ones(8))"), Deadlock,
                                        "rank 1 calls barrier"),
    "one call too few": TeamFault(one("pass", "dist.barrier()"), Deadlock, "and rank 1 has"),
    "all receive": TeamFault("dist.recv(torch.zeros(4), src=(r + 1) % 3)", Deadlock, "nobody sends"),
    "all send": TeamFault("dist.send(torch.zeros(10**6), dst=(r + 1) % 3)", Deadlock, "nobody receives"),
    "group of two waits for one": TeamFault("if r == 2:\n    dist.barrier(group=pair)", Deadlock, "rank 2  waits"),
    "wait for a message of an earlier call": TeamFault(
        one("coming = dist.irecv(torch.zeros(1), src=0); coming.wait()", "pass"), Deadlock, "rank 1  waits"),
    # What does not end: it is stopped, and all is kept
    "endless loop": TeamFault(one("while True: pass"), LaunchTimeout, "rank 1  is at", timeout_s=SHORT_S),
    "sleep": TeamFault(one(LONG), LaunchTimeout, "rank 1  is at", timeout_s=SHORT_S),
    "lock taken twice": TeamFault("lock = threading.Lock(); lock.acquire()\n" + one("lock.acquire()"), LaunchTimeout,
                                  "rank 1  is at", timeout_s=SHORT_S),
    "loop that catches every Exception": TeamFault(
        one("exec('while True:\\n  try: time.sleep(9)\\n  except Exception: pass')"), LaunchTimeout,
        timeout_s=SHORT_S),
    "child that is waited for": TeamFault(one("subprocess.run(['sleep', '1000'])"), LaunchTimeout, "rank 1  is at",
                                          timeout_s=SHORT_S),
    "interrupt": TeamFault(LONG, LaunchInterrupted, "rank 1  was at"),
    # What cannot be stopped: that rank had to end
    "one call into C": TeamFault(one("sum(range(10**12))"), LaunchTimeout, "uninterruptible", SURVIVORS, SHORT_S),
    "loop that catches everything": TeamFault(
        one("exec('while True:\\n  try: time.sleep(9)\\n  except BaseException: pass')"), LaunchTimeout, "",
        SURVIVORS, SHORT_S),
    "signals ignored": TeamFault(one(f"signal.signal(signal.SIGINT, signal.SIG_IGN); {LONG}"), LaunchTimeout, "",
                                 SURVIVORS, SHORT_S),
    "rank that is frozen": TeamFault(one("os.kill(os.getpid(), signal.SIGSTOP)"), LaunchTimeout, "rank 1",
                                     SURVIVORS, SHORT_S),
    "group that one rank makes": TeamFault(one("dist.new_group([0, 1])", "pass"), Deadlock, "rank 1  waits", SURVIVORS),
    # Deaths
    "os._exit": TeamFault(one("os._exit(4)"), RankDied, "rank 1 ended with exit code 4", SURVIVORS),
    "kill -9": TeamFault(one("os.kill(os.getpid(), signal.SIGKILL)"), RankDied, "rank 1 was killed by SIGKILL",
                         SURVIVORS),
    "SIGTERM": TeamFault(one("os.kill(os.getpid(), signal.SIGTERM)"), RankDied, "SIGTERM", SURVIVORS),
    "memory that is not its own": TeamFault(one("ctypes.string_at(0)"), RankDied, "SIGSEGV", SURVIVORS),
    "abort": TeamFault(one("os.abort()"), RankDied, "SIGABRT", SURVIVORS),
    "server killed": TeamFault(one("os.kill(os.getppid(), signal.SIGKILL)"), LaunchError, "", NOBODY),
    # No errors, and yet not as usual
    "many lines": TeamFault("for line in range(5000): print(line)", None),
    "printing switched off": TeamFault(one("sys.stdout.close()", "pass"), None),
    "stdout closed below Python": TeamFault(one("os.close(1)", "pass"), None),
    "thread that fails": TeamFault("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", None),
    "child that is left": TeamFault("child = subprocess.Popen(['sleep', '1000'])", None),
    "folder that is gone": TeamFault("os.makedirs(f'gone{r}'); os.chdir(f'gone{r}'); os.rmdir(f'../gone{r}')", None),
}
