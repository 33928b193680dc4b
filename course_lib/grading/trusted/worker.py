"""Run a student's function on isolated ranks: what it answered, and what crossed between the ranks.

    grader ── IsolatedWorker ── inside/main.py (ours, counts and kills) ── inside/rank.py (the student's code)

Inputs go to the ranks at the last moment, after the counters were read; what comes back is never unpickled
(inside/frames.py). What is sent there of an exercise is the name of
its `run` and, where that is its chapter's own, the text of on_rank.py: all that a rank has to know.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.grading.exercise import TIME_LIMIT_S, Exercise, SentBytes, Trial
from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.inside import frames, privileges
from course_lib.grading.trusted.inside.main import (
    CLOSE_STORE,
    CODE,
    COUNT,
    FAILED,
    FINISH,
    NUM_CORES,
    START,
    WAITED,
    waited_for_core_s,
)
from course_lib.grading.trusted.inside.rank import ANSWER, GO, INPUTS, LOADED, READY, serialize
from course_lib.grading.trusted.replies import (
    GraderBroken,
    NoAnswers,
    RankConnections,
    claimed_traffic,
    count_traffic,
    owners_of,
    read,
)
from course_lib.runtime.ranks import processes

WORKER = Path(__file__).with_name("inside") / "main.py"


@dataclass(frozen=True)
class Limits:
    """What a rank may use. `trial_s` and `start_s` are how long the grader waits for all ranks together."""

    trial_s: float = TIME_LIMIT_S
    start_s: float = 60.0
    memory_bytes: int = 512 << 20  # of a process, on top of what torch itself takes
    result_bytes: int = 32 << 20
    file_bytes: int = 64 << 20
    processes: int = 128  # of all ranks together
    cpu_s: int = 60

    @property
    def memory_together_bytes(self) -> int:
        """What all ranks and their children may hold, files in memory included, where the system can say so."""
        return 8 * self.memory_bytes


class IsolatedWorker:
    """`with IsolatedWorker(isolation) as worker`, then `prepare` and any number of `trial`s; in the end all is gone.

    hidden: folders that no student code may see. GraderBroken where the worker fails, and from then on a new one is
    needed.
    """

    def __init__(self, isolation: sandbox.Isolation, limits: Limits | None = None,
                 hidden: tuple[str, ...] = ()) -> None:
        self.isolation = isolation
        self.limits = limits or Limits()
        self.hidden = hidden
        self.tried: set[str] = set()  # what the ranks have told of so far, until somebody forgets it

    def __enter__(self) -> "IsolatedWorker":
        self.root = tempfile.mkdtemp(prefix="grader-")
        self.uid = privileges.nobodys_uid() if self.isolation.separate or self.isolation.other_user else None
        if self.isolation.other_user:
            os.chmod(self.root, 0o711)  # the ranks' own folders lie in there
        self.mark = secrets.token_hex(16)
        self.counting_tool = sandbox.tool("ss") if privileges.LINUX else None
        self.log = tempfile.TemporaryFile()
        self.memory = sandbox.memory_group(self.limits.memory_together_bytes)
        self.control, theirs = socket.socketpair()
        with theirs:
            command = self._command(theirs.fileno(), self.memory.__enter__())
            self.worker = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                pass_fds=[theirs.fileno()], start_new_session=True,
                env=sandbox.environment(self.isolation.separate) | {processes.context.RANK_MARK: self.mark})
        try:
            self._answer(self.limits.start_s)
        except BaseException:
            self.close()
            raise
        return self

    def _command(self, control_fd: int, join: str) -> list[str]:
        separate = self.isolation.separate
        settings = {
            "course": str(sandbox.COURSE), "folder": sandbox.FOLDER if separate else self.root, "separate": separate,
            "ss": self.counting_tool, "limits": asdict(self.limits),
            "uid": self.uid,
        }
        program = [sys.executable, "-I", str(WORKER), str(control_fd), json.dumps(settings)]
        if separate:
            return sandbox.command(self.root, program, self.hidden, join)
        return ["/bin/sh", "-c", f'{join}\nexec "$@"', "sh", *program] if join else program

    def prepare(self, exercise: Exercise, cells: list[dict[str, Any]], believed: bool = False) -> None:
        """Have the worker read the student's code. cells: those above the check cell, {"source", "name", "own"}.

        believed: in the trials that follow, bytes are those that the ranks say: exact, and no ground for marks.
        NoAnswers where the code is refused as it stands.
        """
        self.exercise = exercise
        self.believed = believed or self.counting_tool is None
        operations = exercise.operations
        refusal = self._ask(CODE, {
            "run": exercise.rank_side, "imports": exercise.imports, "function": exercise.function,
            "asks": exercise.asks,
            "operations": None if operations is None else sorted(operations), "count_inside": self.believed,
            "cells": cells})
        if refusal:
            raise NoAnswers(refusal, "refused")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker and all that it started, and wait until they are gone."""
        if self.isolation.separate:
            self.worker.kill()  # `unshare` takes the namespace's first process with it, and that one takes all others
        else:
            with suppress(GraderBroken):
                self._ask(FINISH)
            processes.kill_tree(self.worker.pid)
            if self.uid is not None:
                privileges.kill_processes_of(self.uid)
        processes.kill_by_mark(self.mark, spare=())  # also waits for what the namespace's end is killing
        self.worker.wait()
        self.control.close()
        self.log.close()
        self.memory.__exit__(None, None, None)
        shutil.rmtree(self.root, ignore_errors=True)

    def _ask(self, kind: bytes, argument: Any = None, connections: list[socket.socket] | None = None) -> Any:
        """The worker's answer to one request."""
        try:
            frames.send(self.control, kind, b"" if argument is None else json.dumps(argument).encode())
            if connections:
                socket.send_fds(self.control, [b"."], [one.fileno() for one in connections])
        except OSError as error:
            raise GraderBroken(f"the worker is gone ({error}). {self._words()}") from None
        return self._answer(self.limits.trial_s + self.limits.start_s)

    def _answer(self, timeout_s: float) -> Any:
        self.control.settimeout(timeout_s)
        try:
            kind, payload = frames.receive(self.control, limit=1 << 22)
        except (OSError, EOFError, frames.BadFrame) as error:
            why = str(error) or type(error).__name__
            raise GraderBroken(f"the worker does not answer ({why}). {self._words()}") from None
        if kind == FAILED:
            raise GraderBroken(payload.decode(errors="replace"))
        return json.loads(payload) if payload else None

    def _words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip()

    def trial(self, trial: Trial) -> tuple[list[Any], SentBytes]:
        """Answers and traffic of one trial. NoAnswers where there are none, in words for the student.

        `spent_s` is then how long the student's code took, without what others had of the cores.
        """
        pairs = [socket.socketpair() for _ in trial.inputs]
        own, start = waited_for_core_s(), None

        def lost_s(elapsed_s: float) -> float:
            """What others had of the cores: of all of them the ranks alone would have waited, too."""
            among_themselves = elapsed_s * max(0.0, 1 - NUM_CORES / trial.world_size)
            return waited_for_core_s() - own + max(0.0, self._ask(WAITED) - among_themselves)

        ranks = RankConnections([ours for ours, _ in pairs], self.limits.trial_s, self.limits.result_bytes, lost_s)
        try:
            self._ask(START, trial.world_size, [theirs for _, theirs in pairs])
            for _, theirs in pairs:  # only the rank has it now: its end shows that the rank has ended
                theirs.close()
            try:
                owners = owners_of(ranks.wait(READY, self.limits.start_s))
            except NoAnswers as error:  # no student's code is there yet
                raise GraderBroken(f"the ranks did not start: {error}") from None
            # In this order: the store is closed before any student's code runs, and the counters are read before the
            # inputs are there, without which there is nothing to compute or to send.
            self._ask(CLOSE_STORE)
            start = time.monotonic()
            ranks.tell(GO, [b""] * trial.world_size)
            ranks.wait(LOADED, self.limits.trial_s)
            before = self._ask(COUNT)
            ranks.tell(INPUTS, [serialize(value) for value in trial.inputs])
            payloads = ranks.wait(ANSWER, self.limits.trial_s, lambda asked: self.exercise.reply(trial, asked))
            after = self._ask(COUNT)
        finally:
            self.spent_s = 0.0 if start is None else (elapsed := time.monotonic() - start) - lost_s(elapsed)
            for ours, theirs in pairs:
                ours.close()
                theirs.close()
            self.tried |= ranks.tried
            self._ask(FINISH)  # whatever failed: a rank that is still there would send into the next trial's counts
        replies = read(payloads)
        for rank, reply in enumerate(replies):
            if self.exercise.asks and type(reply["answer"]) is dict:
                reply["answer"]["asked"] = ranks.asked[rank]
        return [reply["answer"] for reply in replies], (
            claimed_traffic([reply["sent"] for reply in replies]) if self.believed
            else count_traffic(owners, before, after, trial.world_size))
