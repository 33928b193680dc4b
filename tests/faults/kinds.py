"""The ways in which ranks go wrong, in launches and in ranks that stay: the error that must come, and who must live on.

One table for three users: tests/runtime/test_faults.py injects into launches, tests/runtime/test_team_faults.py into a
team for as long as its ranks live (together every kind once, with --sweep every kind into both), and
`python -m tests.faults.soak` hundreds at random into launches. A fault happens in one rank, the culprit, after some
steps of ordinary work.
"""

import contextlib
import io
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout, RankDied, RankFailed, launch
from course_lib.runtime.errors import LaunchInterrupted

SOON_S = {RankFailed: 1.5, RankDied: 2.0, Deadlock: 5.0}  # after its fault each error comes within so long
ALL, SURVIVORS, NOBODY = (0, 1, 2), (0, 2), ()  # of a team of three whose rank 1 is the culprit
SHORT_S = 1.5  # time limit of a call that never ends
MOST_LINES = 40  # of a message: what a reader takes in
_POLL_S = 0.01


@dataclass(frozen=True)
class Plan:
    """Where and when a fault happens, and how large it is."""

    culprit: int = 1
    world_size: int = 3
    step: int = 3
    num_lines: int = 20_000
    result_bytes: int = 8_000_000


@dataclass(frozen=True)
class Fault:
    """`code` is what the culprit does, `peers` what the others do meanwhile (None: the same). `error` and `says`, a
    part of its message, must come of it, and the ranks `alive` of a team keep what they hold. `only`: "launch", "team".
    """

    code: str
    error: type[BaseException] | None = RankFailed
    says: str = ""  # {culprit} is filled in
    alive: tuple[int, ...] = ALL
    peers: str | None = "dist.barrier()"
    only: str = ""

    def cell(self, culprit: int) -> str:
        """What every rank runs, after SESSION."""
        if self.peers is None:
            return self.code
        return f"if r == {culprit}:\n{indent(self.code, '    ')}\nelse:\n    {self.peers}"


SESSION = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
r, n, num_lines, result_bytes = dist.get_rank(), dist.get_world_size(), {plan.num_lines}, {plan.result_bytes}
kept = torch.full((3,), 11.0 * r)
others = dist.new_group([rank for rank in range(n) if rank != {plan.culprit}])
for _ in range({plan.step}):
    dist.all_reduce(torch.ones(8))
"""
LONG = "time.sleep(1000)"
MUTE = "class Mute({base}):\n    def {method}(self):\n        raise LookupError('no words')\n\n"
CATCH = "exec('while True:\\n  try: time.sleep(9)\\n  except {}: pass')"

FAULTS = {
    # Errors of Python: a team keeps all
    "exception": Fault("raise ArithmeticError('not a number')", says="rank {culprit} failed"),
    "exception in all": Fault("raise ValueError('empty batch')", says="so did rank", peers=None),
    "exception where peers return": Fault("raise KeyError('missing')", says="rank {culprit} failed", peers="pass"),
    "exception where peers are in a group of theirs": Fault(
        "raise KeyError('missing')", says="rank {culprit} failed", peers="dist.barrier(group=others)"),
    "exception where peers compute": Fault("raise KeyError('missing')", says="rank {culprit} failed", peers=LONG),
    "unknown name": Fault("not_there", says="NameError", peers=None),
    "failed assertion": Fault("assert r < 0, 'wrong rank'", says="wrong rank"),
    "shapes that do not fit": Fault("torch.ones(2) @ torch.ones(3)", says="RuntimeError", peers=None),
    "unprintable exception": Fault(MUTE.format(base="Exception", method="__str__") + "raise Mute",
                                   says="its __str__ raised LookupError"),
    "endless recursion": Fault("def again():\n    again()\n\nagain()", says="more of these"),
    "exception group": Fault("raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])", says="ExceptionGroup"),
    "KeyboardInterrupt of its own": Fault("raise KeyboardInterrupt", says="KeyboardInterrupt"),
    "too much memory": Fault("bytearray(10**15)", says="MemoryError"),
    "value that cannot be printed": Fault(MUTE.format(base="", method="__repr__") + "Mute()", says="no words",
                                          peers=None, only="team"),
    "input from nobody": Fault("input()", says="EOFError"),
    "breakpoint for nobody": Fault("breakpoint()", says="here nobody can"),
    "sys.exit": Fault("sys.exit(3)", says="SystemExit: 3"),
    "message never received": Fault("sent = dist.isend(torch.ones(4), (r + 1) % n); raise KeyError('k')", peers="pass"),
    "message never sent": Fault("coming = dist.irecv(torch.ones(4), (r + 1) % n); raise KeyError('k')", peers="pass"),
    "group destroyed": Fault("dist.destroy_process_group()", only="team"),
    "unpicklable result": Fault("result = threading.Lock()", says="rank {culprit} failed", peers="pass", only="launch"),
    # What hangs in communication: a team keeps all
    "recv nobody answers": Fault("dist.recv(torch.zeros(4), src=(r + 1) % n)", Deadlock, "rank {culprit}  waits",
                                 peers="pass"),
    "mismatched collectives": Fault("dist.barrier()", Deadlock, "rank {culprit} calls barrier",
                                    peers="dist.all_reduce(torch.ones(8))"),
    "one call too few": Fault("pass", Deadlock, "and rank {culprit} has"),
    "all receive": Fault("dist.recv(torch.zeros(4), src=(r + 1) % n)", Deadlock, "nobody sends", peers=None),
    "all send": Fault("dist.send(torch.zeros(10**6), dst=(r + 1) % n)", Deadlock, "nobody receives", peers=None),
    "group of two waits for one": Fault("pass", Deadlock, "rank 2  waits",
                                        peers="r == 2 and dist.barrier(group=others)", only="team"),
    "wait for a message of an earlier call": Fault(
        "coming = dist.irecv(torch.zeros(1), src=(r + 1) % n); coming.wait()", Deadlock, "rank {culprit}  waits",
        peers="pass"),
    # What does not end: it is stopped, and a team keeps all
    "endless loop": Fault("while True: pass", LaunchTimeout, "rank {culprit}  is at"),
    "sleep": Fault(LONG, LaunchTimeout, "rank {culprit}  is at"),
    "lock taken twice": Fault("lock = threading.Lock(); lock.acquire(); lock.acquire()", LaunchTimeout,
                              "rank {culprit}  is at"),
    "loop that catches every Exception": Fault(CATCH.format("Exception"), LaunchTimeout),
    "child that is waited for": Fault("subprocess.run(['sleep', '1000'])", LaunchTimeout, "rank {culprit}  is at"),
    "interrupt": Fault(LONG, LaunchInterrupted, "rank {culprit}  was at"),
    # What cannot be stopped: that rank has to end
    "one call into C": Fault("sum(range(10**12))", LaunchTimeout, "uninterruptible", SURVIVORS),
    "loop that catches everything": Fault(CATCH.format("BaseException"), LaunchTimeout, "", SURVIVORS),
    "signals ignored": Fault(f"signal.signal(signal.SIGINT, signal.SIG_IGN); {LONG}", LaunchTimeout, "", SURVIVORS),
    "rank that is frozen": Fault("os.kill(os.getpid(), signal.SIGSTOP)", LaunchTimeout, "rank {culprit}", SURVIVORS),
    "group that one rank makes": Fault("dist.new_group([0, 1])", Deadlock, "rank {culprit}  waits", SURVIVORS, "pass",
                                       only="team"),
    "frozen server": Fault("os.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass", LaunchError,
                           "the process that starts ranks did not answer", only="launch"),
    # Deaths
    "os._exit": Fault("os._exit(4)", RankDied, "rank {culprit} ended with exit code 4", SURVIVORS),
    "kill -9": Fault("os.kill(os.getpid(), signal.SIGKILL)", RankDied, "rank {culprit} was killed by SIGKILL",
                     SURVIVORS),
    "SIGTERM": Fault("os.kill(os.getpid(), signal.SIGTERM)", RankDied, "SIGTERM", SURVIVORS),
    "memory that is not its own": Fault("ctypes.string_at(0)", RankDied, "SIGSEGV", SURVIVORS),
    "abort": Fault("os.abort()", RankDied, "SIGABRT", SURVIVORS),
    "server killed": Fault("os.kill(os.getppid(), signal.SIGKILL)", LaunchError, "", NOBODY),
    # No errors, and yet not as usual
    "many lines": Fault("for line in range(num_lines): print(line, file=(sys.stdout, sys.stderr)[line % 2])", None,
                        peers=None),
    "large result": Fault("result = torch.full((result_bytes // 4,), float(r))", None, peers="pass", only="launch"),
    "printing switched off": Fault("sys.stdout.close()", None, peers="pass"),
    "stdout closed below Python": Fault("os.close(1)", None, peers="pass"),
    "thread that fails": Fault("t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", None, peers=None),
    "child that is left": Fault("child = subprocess.Popen(['sleep', '1000'])", None, peers=None),
    "folder that is gone": Fault("os.makedirs(f'gone{r}'); os.chdir(f'gone{r}'); os.rmdir(f'../gone{r}')", None,
                                 peers=None),
    "kill -9 beside workers": Fault(
        "batches = iter(torch.utils.data.DataLoader(range(9), num_workers=2)); next(batches); os.kill(os.getpid(), 9)",
        RankDied, "rank {culprit} was killed by SIGKILL", SURVIVORS),
}
IN_LAUNCH = [kind for kind, fault in FAULTS.items() if fault.only != "team"]
IN_TEAM = [kind for kind, fault in FAULTS.items() if fault.only != "launch"]
FEW_IN_LAUNCH = [kind for number, kind in enumerate(IN_LAUNCH) if number % 2 == 0 or FAULTS[kind].only]
FEW_IN_TEAM = [kind for kind in IN_TEAM if kind not in FEW_IN_LAUNCH]


@dataclass(frozen=True)
class Outcome:
    """How a launch with a fault ended. `late_s`: from the fault (time-outs: from the limit) to the end of launch."""

    error: BaseException | None
    results: list[Any] | None
    printed: str
    complained: str  # on stderr
    late_s: float


def rank_sum() -> float:
    """What works after every fault: the sum of the ranks' numbers, on each of them."""
    ranks = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(ranks)
    return ranks.item()


def start_a_daemon() -> int:
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


def work(kind: str, plan: Plan, folder: str) -> Any:
    """What every rank of a launch runs. Leaves the time of the fault in `folder`."""
    names: dict[str, Any] = {}
    exec(SESSION.format(plan=plan), names)
    rank = dist.get_rank()
    Path(folder, f"{rank}.part").write_text(str(time.monotonic()))
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")  # whoever sees it sees it whole
    exec(compile(FAULTS[kind].cell(plan.culprit), f"<{kind}>", "exec"), names)
    return names.get("result", rank)


def inject(kind: str, plan: Plan) -> Outcome:
    """Launch with this fault and see how it ends."""
    printed, complained = io.StringIO(), io.StringIO()
    error = results = None
    timeout_s = SHORT_S if FAULTS[kind].error is LaunchTimeout else 60.0
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        if kind == "interrupt":
            interrupt_once(Path(folder, str(plan.culprit)).exists)
        started = time.monotonic()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
            try:
                results = launch(work, kind, plan, folder, world_size=plan.world_size, timeout=timeout_s)
            except (Exception, KeyboardInterrupt) as caught:
                error = caught
        ended = time.monotonic()
        moments = {int(file.name): float(file.read_text()) for file in Path(folder).iterdir() if not file.suffix}
    if isinstance(error, LaunchTimeout):
        since = started + timeout_s
    elif isinstance(error, Deadlock):
        since = max(moments.values())  # from here on nothing moved
    else:
        since = moments.get(plan.culprit, started)
    return Outcome(error, results, printed.getvalue(), complained.getvalue(), ended - since)


def interrupt_once(there: Callable[[], bool]) -> None:
    """In a thread: an interrupt of this process, as soon as `there()`."""
    def watch() -> None:
        while not there():
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def complaints(kind: str, plan: Plan, outcome: Outcome) -> list[str]:
    """What is wrong with an outcome, but for its time; empty when all is as promised."""
    fault = FAULTS[kind]
    if fault.error is None and outcome.error is None:
        return _complaints_about_results(kind, plan, outcome)
    found = complaints_about(fault, plan.culprit, outcome.error)
    named = getattr(outcome.error, "rank", plan.culprit)
    if not found and fault.peers and named != plan.culprit:
        found = [f"blames rank {named}, it was rank {plan.culprit}"]
    return found


def complaints_about(fault: Fault, culprit: int, error: BaseException | None) -> list[str]:
    """What is wrong with the error that has come of a fault."""
    says, told = fault.says.format(culprit=culprit), str(error)
    wanted = fault.error or type(None)
    if type(error) is not wanted and not (wanted is LaunchError and isinstance(error, LaunchError)):
        return [f"expected {wanted.__name__}, got {type(error).__name__}: {told}"]
    if says not in told:
        return [f"the message does not say {says!r}: {told}"]
    return [f"the message has more than {MOST_LINES} lines: {told}"] if told.count("\n") >= MOST_LINES else []


def _complaints_about_results(kind: str, plan: Plan, outcome: Outcome) -> list[str]:
    results = list(outcome.results)
    if kind == "large result":
        expected = torch.full((plan.result_bytes // 4,), float(plan.culprit))
        if not torch.equal(results[plan.culprit], expected):
            return ["the large result did not arrive whole"]
        results[plan.culprit] = plan.culprit
    if results != list(range(plan.world_size)):
        return [f"the results are {results}"]
    if "course_lib" in outcome.complained:
        return [f"a rank shows the reader what is the course's own: {outcome.complained}"]
    if kind == "many lines":
        for rank in range(plan.world_size):
            for printed, first in ((outcome.printed, 0), (outcome.complained, 1)):
                lines = [line for line in printed.splitlines() if line.startswith(f"[rank {rank}] ")]
                if lines != [f"[rank {rank}] {line}" for line in range(first, plan.num_lines, 2)]:
                    return [f"what rank {rank} printed is not complete and in order"]
    return []
