"""Run a student's function on isolated ranks: what it answered, and what crossed between the ranks.

    grader ── IsolatedRun ── worker (ours, counts and kills) ── ranks (the student's code)

Inputs go to the ranks at the last moment, after the counters were read; tensors come back as bytes that only
torch.load(weights_only=True) reads, after their sizes were checked. One IsolatedRun is one exercise of one submission.
"""

import inspect
import io
import json
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from course_lib.grading import frames, privileges, sandbox
from course_lib.grading.counters import owners_of, traffic_claimed, traffic_counted
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.failures import error_in, too_late, worst
from course_lib.grading.isolated_rank import ANSWER, ERROR, GO, INPUTS, LATE, LOADED, READY
from course_lib.grading.isolated_worker import CLOSE_STORE, CODE, COUNT, FAILED, FINISH, START
from course_lib.grading.replies import Failed, read
from course_lib.runtime.ranks import processes

WORKER = Path(__file__).with_name("isolated_worker.py")
GRACE_S = 0.5  # after the first rank failed: another one may know more


@dataclass(frozen=True)
class Limits:
    """For each rank, but `trial_s` and `start_s`, which are waited for all of them."""

    trial_s: float = 10.0
    start_s: float = 60.0
    memory_bytes: int = 2 << 30  # on top of what torch itself takes
    result_bytes: int = 64 << 20
    file_bytes: int = 64 << 20
    processes: int = 128  # of all ranks together
    cpu_s: int = 60


class GraderBroken(RuntimeError):
    """Our own side did not work: nothing can be said about the student's code."""


class IsolatedWorker:
    """`with IsolatedWorker(isolation) as worker`, then `prepare` and any number of `trial`s; in the end all is gone.

    exercises: those whose classes are not of course_lib, so that their files are shown. hidden: folders that no student
    code may see. GraderBroken where the worker fails, and from then on a new one is needed.
    """

    def __init__(self, isolation: sandbox.Isolation, limits: Limits | None = None,
                 exercises: Iterable[Exercise] = (), hidden: tuple[str, ...] = ()) -> None:
        self.isolation = isolation
        self.limits = limits or Limits()
        self.files = tuple({origin(exercise)[1] for exercise in exercises
                            if not origin(exercise)[0].startswith("course_lib.")})
        self.hidden = hidden

    def __enter__(self) -> "IsolatedWorker":
        self.root = tempfile.mkdtemp(prefix="grader-")
        self.mark = secrets.token_hex(16)
        self.counting_tool = sandbox.tool("ss") if privileges.LINUX else None
        self.log = tempfile.TemporaryFile()
        self.control, theirs = socket.socketpair()
        with theirs:
            self.worker = subprocess.Popen(
                self._command(theirs.fileno()), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                pass_fds=[theirs.fileno()], start_new_session=True,
                env=sandbox.environment(self.isolation.separate) | {processes.context.RANK_MARK: self.mark})
        try:
            self._answer(self.limits.start_s)
        except BaseException:
            self.close()
            raise
        return self

    def _command(self, control_fd: int) -> list[str]:
        separate = self.isolation.separate
        settings = {
            "course": str(sandbox.COURSE), "folder": sandbox.FOLDER if separate else self.root, "separate": separate,
            "ss": self.counting_tool, "count_inside": self.counting_tool is None, "limits": asdict(self.limits),
            "uid": privileges.nobodys_uid() if separate else None,
        }
        program = [sys.executable, "-I", str(WORKER), str(control_fd), json.dumps(settings)]
        return sandbox.command(self.root, program, self.files, self.hidden) if separate else program

    def prepare(self, exercise: Exercise, cells: list[dict[str, Any]]) -> None:
        """Have the worker read the student's code. cells: those above the check cell, {"source", "name", "own"}.

        Failed where the code is refused as it stands.
        """
        refusal = self._ask(CODE, {"exercise": origin(exercise), "function": exercise.function, "cells": cells})
        if refusal:
            raise Failed(refusal, "refused")

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the worker and all that it started."""
        if self.isolation.separate:
            self.worker.kill()  # `unshare` takes the namespace's first process with it, and that one takes all others
        else:
            with suppress(GraderBroken):
                self._ask(FINISH)
            processes.kill_tree(self.worker.pid)
            processes.kill_marked(self.mark, spare=())
        self.worker.wait()
        self.control.close()
        self.log.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def _ask(self, kind: bytes, argument: Any = None, connections: list[socket.socket] | None = None) -> Any:
        """The worker's answer to one request."""
        try:
            frames.send(self.control, kind, b"" if argument is None else json.dumps(argument).encode())
            if connections:
                socket.send_fds(self.control, [b"."], [one.fileno() for one in connections])
        except OSError as error:
            raise GraderBroken(f"the worker is gone ({error}). {self._words()}") from None
        return self._answer(self.limits.trial_s + 20)

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

    def trial(self, trial: Trial) -> tuple[list[Any], Traffic]:
        """Answers and traffic of one trial. Failed where there are none, in words for the student."""
        pairs = [socket.socketpair() for _ in trial.inputs]
        ranks = Ranks([ours for ours, _ in pairs], self.limits)
        try:
            self._ask(START, trial.world_size, [theirs for _, theirs in pairs])
            for _, theirs in pairs:
                theirs.close()
            try:
                owners = owners_of(ranks.wait(READY, self.limits.start_s))
            except Failed as error:  # no student's code is there yet
                raise GraderBroken(f"the ranks did not start: {error}") from None
            self._ask(CLOSE_STORE)
            ranks.tell(GO, [b""] * trial.world_size)
            ranks.wait(LOADED, self.limits.trial_s)
            before = self._ask(COUNT)
            ranks.tell(INPUTS, [saved(value) for value in trial.inputs])
            payloads = ranks.wait(ANSWER, self.limits.trial_s)
            after = self._ask(COUNT)
        finally:
            for ours, theirs in pairs:
                ours.close()
                theirs.close()
            self._ask(FINISH)
        replies = [read(payload, self.limits.result_bytes) for payload in payloads]
        if self.counting_tool is None:
            return [reply["answer"] for reply in replies], traffic_claimed([reply.get("sent") for reply in replies])
        return [reply["answer"] for reply in replies], traffic_counted(owners, before, after, trial.world_size)


class Deadline:
    """A point in time, which can come nearer."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def at_most(self, timeout_s: float) -> None:
        self._at = min(self._at, time.monotonic() + timeout_s)

    def left_s(self) -> float:
        return self._at - time.monotonic()


class Ranks:
    """The grader's ends of the connections to the ranks of one trial."""

    def __init__(self, connections: list[socket.socket], limits: Limits) -> None:
        self.connections = connections
        self.limits = limits
        self.inboxes = [frames.Inbox(limits.result_bytes) for _ in connections]

    def tell(self, kind: bytes, payloads: list[bytes]) -> None:
        for rank, (connection, payload) in enumerate(zip(self.connections, payloads)):
            connection.settimeout(self.limits.trial_s)
            try:
                frames.send(connection, kind, payload)
            except OSError:
                raise Failed(f"rank {rank} ended before it was asked anything") from None

    def wait(self, kind: bytes, timeout_s: float) -> list[bytes]:
        """One message of this kind from every rank. Failed where a rank fails, ends, or is late."""
        received: dict[int, bytes] = {}
        failures: list[tuple[int, dict | None]] = []  # rank, and its error; None where its process ended
        places: dict[int, str] = {}  # where a rank was when time was nearly up
        deadline = Deadline(timeout_s)
        for rank, got, payload in self._messages(deadline):
            if got == kind and rank not in received:
                received[rank] = payload
                if len(received) == len(self.connections):
                    return [received[rank] for rank in range(len(received))]
            elif got == LATE:
                places[rank] = error_in(payload).get("where", "")
            elif rank not in received:
                error = error_in(payload) if got == ERROR else None if got is None else {"words": "sent nonsense"}
                failures.append((rank, error))
                deadline.at_most(GRACE_S)
                if len(failures) + len(received) == len(self.connections):
                    break
        if failures:
            raise worst(failures)
        waiting = [rank for rank in range(len(self.connections)) if rank not in received]
        ranks = ", ".join(map(str, waiting))
        at = "".join(f"\nrank {rank} was at {places[rank]}" for rank in waiting if places.get(rank))
        raise Failed(too_late(kind, f"rank{'s' * (len(waiting) > 1)} {ranks}", timeout_s) + at)

    def _messages(self, deadline: "Deadline") -> Iterator[tuple[int, bytes | None, bytes]]:
        """(rank, kind, payload) as they come, kind None for a rank that ended; until time is up."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self.connections):
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
                try:
                    while (message := self.inboxes[rank].take()) is not None:  # came along with the one before
                        yield rank, *message
                except frames.BadFrame:
                    yield rank, b"?", b""
            while selector.get_map() and (timeout := deadline.left_s()) > 0:
                for key, _ in selector.select(timeout):
                    rank = key.data
                    try:
                        piece = key.fileobj.recv(frames.PIECE)
                        self.inboxes[rank].feed(piece)
                        while (message := self.inboxes[rank].take()) is not None:
                            yield rank, *message
                    except BlockingIOError:
                        continue
                    except (OSError, frames.BadFrame):
                        selector.unregister(key.fileobj)
                        yield rank, b"?", b""
                        continue
                    if not piece:
                        selector.unregister(key.fileobj)
                        yield rank, None, b""


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def origin(exercise: Exercise) -> tuple[str, str, str]:
    """Module, file and name of the exercise's class."""
    kind = type(exercise)
    return kind.__module__, os.path.realpath(inspect.getfile(kind)), kind.__name__
