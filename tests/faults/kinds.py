"""The ways in which ranks go wrong, each with the error that must come of it.

One list for two users: tests/runtime/test_faults.py injects every kind once, `python -m tests.faults.soak` hundreds at
random. A fault happens in one rank, the culprit, after some steps of ordinary work; its peers go on to the next step.
"""

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime import Deadlock, LaunchError, LaunchTimeout, RankDied, RankFailed, launch
from course_lib.runtime.errors import LaunchInterrupted

_POLL_S = 0.01
_MOST_LINES = 40  # of a message: what a reader takes in


@dataclass(frozen=True)
class Plan:
    """Where and when a fault happens, and how large it is."""

    culprit: int
    world_size: int
    step: int
    num_lines: int = 100_000
    result_bytes: int = 200_000_000
    timeout_s: float = 60.0  # of the launch; the endless loop uses it up


@dataclass(frozen=True)
class Outcome:
    """How a launch with a fault ended. `late_s`: from the fault (time-outs: from the limit) to the end of launch."""

    error: BaseException | None
    results: list[Any] | None
    printed: str
    late_s: float


@dataclass(frozen=True)
class Fault:
    """`body` is what the culprit does; `error` and `says` are what must come of it, `limit_s` how soon."""

    kind: str
    body: Callable[[Plan], Any]
    error: type[BaseException] | None
    says: str  # a part of the message; {culprit} is filled in
    limit_s: float | None = None
    peers_go_on: bool = True  # to the next all-reduce; otherwise they return


def raise_an_exception(plan: Plan) -> None:
    raise ArithmeticError(f"the loss of step {plan.step} is not a number")


class WithoutWords(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise LookupError("no words")


def raise_what_cannot_be_printed(plan: Plan) -> None:
    raise WithoutWords


def call_itself_for_ever(plan: Plan) -> None:
    call_itself_for_ever(plan)


def raise_several_at_once(plan: Plan) -> None:
    raise ExceptionGroup("several", [ValueError("the first"), KeyError("the second")])


def freeze_the_server(plan: Plan) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    loop_for_ever(plan)


def be_killed(plan: Plan) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def receive_what_nobody_sends(plan: Plan) -> None:
    dist.recv(torch.zeros(4), src=(plan.culprit + 1) % plan.world_size)


def call_another_collective(plan: Plan) -> None:
    dist.barrier()


def loop_for_ever(plan: Plan) -> None:
    while True:
        pass


def call_sys_exit(plan: Plan) -> None:
    sys.exit(3)


def call_os_exit(plan: Plan) -> None:
    os._exit(4)


def print_many_lines(plan: Plan) -> int:
    for line in range(plan.num_lines):
        print("line", line)
    return plan.culprit


def return_a_lock(plan: Plan) -> Any:
    return threading.Lock()


def return_a_large_tensor(plan: Plan) -> torch.Tensor:
    return torch.full((plan.result_bytes // 4,), float(plan.culprit))


FAULTS = {
    fault.kind: fault
    for fault in (
        Fault("exception", raise_an_exception, RankFailed, "rank {culprit} failed", 1.5),
        Fault("unprintable exception", raise_what_cannot_be_printed, RankFailed, "its __str__ raised LookupError", 1.5),
        Fault("endless recursion", call_itself_for_ever, RankFailed, "more of these", 1.5),
        Fault("exception group", raise_several_at_once, RankFailed, "2. KeyError: 'the second'", 1.5),
        Fault("kill -9", be_killed, RankDied, "rank {culprit} was killed by SIGKILL", 2.0),
        Fault("recv nobody answers", receive_what_nobody_sends, Deadlock, "rank {culprit}  waits", 5.0,
              peers_go_on=False),
        Fault("mismatched collectives", call_another_collective, Deadlock, "rank {culprit} calls barrier", 5.0),
        Fault("endless loop", loop_for_ever, LaunchTimeout, "rank {culprit}  is at"),
        Fault("sys.exit", call_sys_exit, RankDied, "rank {culprit} called sys.exit (exit code 3)", 2.0),
        Fault("os._exit", call_os_exit, RankDied, "rank {culprit} ended with exit code 4", 2.0),
        Fault("many lines", print_many_lines, None, "", peers_go_on=False),
        Fault("interrupt", loop_for_ever, LaunchInterrupted, "rank {culprit}  was at"),
        Fault("unpicklable result", return_a_lock, RankFailed, "rank {culprit} failed", 1.5, peers_go_on=False),
        Fault("large result", return_a_large_tensor, None, "", peers_go_on=False),
        Fault("frozen server", freeze_the_server, LaunchError, "the process that starts ranks did not answer"),
    )
}


def work(kind: str, plan: Plan, folder: str) -> Any:
    """What every rank runs: `plan.step` steps, then the culprit's fault. Leaves the time of the fault in `folder`."""
    for _ in range(plan.step):
        dist.all_reduce(torch.ones(8))
    rank = dist.get_rank()
    Path(folder, f"{rank}.part").write_text(str(time.monotonic()))
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")  # whoever sees it sees it whole
    if rank == plan.culprit:
        return FAULTS[kind].body(plan)
    if FAULTS[kind].peers_go_on:
        dist.all_reduce(torch.ones(8))
    return rank


def inject(kind: str, plan: Plan) -> Outcome:
    """Launch with this fault and see how it ends."""
    printed = io.StringIO()
    error = results = None
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        if kind == "interrupt":
            threading.Thread(target=_interrupt_once_there, args=(Path(folder, str(plan.culprit)),)).start()
        started = time.monotonic()
        with contextlib.redirect_stdout(printed):
            try:
                results = launch(work, kind, plan, folder, world_size=plan.world_size, timeout=plan.timeout_s)
            except (Exception, KeyboardInterrupt) as caught:
                error = caught
        ended = time.monotonic()
        moments = {int(file.name): float(file.read_text()) for file in Path(folder).iterdir() if not file.suffix}
    if isinstance(error, LaunchTimeout):
        since = started + plan.timeout_s
    elif isinstance(error, Deadlock):
        since = max(moments.values())  # from here on nothing moved
    else:
        since = moments.get(plan.culprit, started)
    return Outcome(error, results, printed.getvalue(), ended - since)


def _interrupt_once_there(file: Path) -> None:
    while not file.exists():
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGINT)


def complaints(kind: str, plan: Plan, outcome: Outcome) -> list[str]:
    """What is wrong with an outcome, but for its time; empty when all is as promised."""
    fault = FAULTS[kind]
    if type(outcome.error) is not (fault.error or type(None)):
        wanted = fault.error.__name__ if fault.error else "no error"
        return [f"expected {wanted}, got {type(outcome.error).__name__}: {outcome.error}"]
    if fault.error is None:
        return _complaints_about_results(kind, plan, outcome)
    says = fault.says.format(culprit=plan.culprit)
    if says not in str(outcome.error):
        return [f"the message does not say {says!r}: {outcome.error}"]
    if str(outcome.error).count("\n") >= _MOST_LINES:
        return [f"the message has more than {_MOST_LINES} lines: {outcome.error}"]
    named = getattr(outcome.error, "rank", plan.culprit)
    return [f"blames rank {named}, it was rank {plan.culprit}"] if named != plan.culprit else []


def _complaints_about_results(kind: str, plan: Plan, outcome: Outcome) -> list[str]:
    results = list(outcome.results)
    if kind == "large result":
        large = results[plan.culprit]
        if large.numel() != plan.result_bytes // 4 or not bool((large == plan.culprit).all()):
            return ["the large result did not arrive whole"]
        results[plan.culprit] = plan.culprit
    if results != list(range(plan.world_size)):
        return [f"the results are {results}"]
    lines = plan.num_lines if kind == "many lines" else 0
    expected = "".join(f"[rank {plan.culprit}] line {line}\n" for line in range(lines))
    return [] if outcome.printed == expected else ["what was printed is not complete and in order"]
