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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from course_lib.grading import frames, sandbox
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.isolated_rank import ANSWER, ERROR, INPUTS, LOADED, READY
from course_lib.grading.isolated_worker import CLOSE_STORE, CODE, COUNT, FINISH, START
from course_lib.runtime import processes

WORKER = Path(__file__).with_name("isolated_worker.py")
HEADERS_OF_SEGMENT = 66  # Ethernet, IPv4 and TCP with timestamps: what the network counts and the connection does not
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


class Failed(Exception):
    """The trial has no answers: what a student should hear. `kind`: "not written", "refused" or ""."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class GraderBroken(RuntimeError):
    """Our own side did not work: nothing can be said about the student's code."""


class IsolatedRun:
    """`with IsolatedRun(exercise, cells, isolation) as run: run.trial(trial)`; everything is gone at the end.

    cells: the notebook's code above the check cell, {"source", "name", "own"}. GraderBroken where the worker fails.
    """

    def __init__(self, exercise: Exercise, cells: list[dict[str, Any]], isolation: sandbox.Isolation,
                 limits: Limits | None = None, hidden: tuple[str, ...] = ()) -> None:
        self.exercise = exercise
        self.cells = cells
        self.isolation = isolation
        self.limits = limits or Limits()
        self.hidden = hidden

    def __enter__(self) -> "IsolatedRun":
        self.root = tempfile.mkdtemp(prefix="grader-")
        kind = type(self.exercise)
        file = inspect.getfile(kind)
        outside = () if kind.__module__.startswith("course_lib.") else (os.path.realpath(file),)
        separate = self.isolation.separate
        self.counting_tool = sandbox.tool("ss") if sys.platform.startswith("linux") else None
        settings = {
            "course": str(sandbox.COURSE), "folder": sandbox.FOLDER if separate else self.root, "separate": separate,
            "exercise": [kind.__module__, os.path.realpath(file), kind.__name__], "function": self.exercise.function,
            "ss": self.counting_tool, "count_inside": self.counting_tool is None,
            "uid": 2_000_000_000 + os.getpid() if os.geteuid() == 0 else None, "limits": asdict(self.limits),
        }
        self.control, theirs = socket.socketpair()
        self.mark = secrets.token_hex(16)
        program = [sys.executable, "-I", str(WORKER), str(theirs.fileno()), json.dumps(settings)]
        if separate:
            program = sandbox.command(self.root, program, outside, self.hidden)
        self.log = tempfile.TemporaryFile()
        self.worker = subprocess.Popen(
            program, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, pass_fds=[theirs.fileno()],
            env=sandbox.environment() | {processes.context.RANK_MARK: self.mark}, start_new_session=True)
        theirs.close()
        try:
            self._answer(self.limits.start_s)
            self.refusal = self._ask(CODE, self.cells)
        except BaseException:
            self.close()
            raise
        return self

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
            raise GraderBroken(f"the worker does not answer ({error or type(error).__name__}). {self._words()}") from None
        if kind == b"!":
            raise GraderBroken(payload.decode(errors="replace"))
        return json.loads(payload) if payload else None

    def _words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip()

    def trial(self, trial: Trial) -> tuple[list[Any], Traffic]:
        """Answers and traffic of one trial. Failed where there are none, in words for the student."""
        if self.refusal:
            raise Failed(self.refusal, "refused")
        pairs = [socket.socketpair() for _ in trial.inputs]
        ranks = Ranks([ours for ours, _ in pairs], self.limits)
        try:
            self._ask(START, trial.world_size, [theirs for _, theirs in pairs])
            for _, theirs in pairs:
                theirs.close()
            owners = owners_of(ranks.wait(READY, self.limits.start_s))
            self._ask(CLOSE_STORE)
            ranks.wait(LOADED, self.limits.trial_s)
            before = self._ask(COUNT)
            ranks.give(trial.inputs)
            payloads = ranks.wait(ANSWER, self.limits.trial_s)
            after = self._ask(COUNT)
        finally:
            for ours, theirs in pairs:
                ours.close()
                theirs.close()
            self._ask(FINISH)
        replies = [read(payload, self.limits.result_bytes) for payload in payloads]
        if self.counting_tool is None:
            return [reply["answer"] for reply in replies], claimed([reply.get("sent") for reply in replies])
        return [reply["answer"] for reply in replies], counted(owners, before, after, trial.world_size)


class Ranks:
    """The grader's ends of the connections to the ranks of one trial."""

    def __init__(self, connections: list[socket.socket], limits: Limits) -> None:
        self.connections = connections
        self.limits = limits
        self.inboxes = [frames.Inbox(limits.result_bytes) for _ in connections]

    def give(self, inputs: list[Any]) -> None:
        for rank, value in enumerate(inputs):
            buffer = io.BytesIO()
            torch.save(value, buffer)
            self.connections[rank].settimeout(self.limits.trial_s)
            try:
                frames.send(self.connections[rank], INPUTS, buffer.getvalue())
            except OSError:
                raise Failed(f"rank {rank} ended before it got its inputs") from None

    def wait(self, kind: bytes, timeout_s: float) -> list[bytes]:
        """One message of this kind from every rank. Failed where a rank fails, ends, or is late."""
        received: dict[int, bytes] = {}
        failures: list[tuple[int, dict | None]] = []  # rank, and its error; None where its process ended
        deadline = time.monotonic() + timeout_s
        for rank, got, payload in self._messages(lambda: deadline - time.monotonic()):
            if got == kind and rank not in received:
                received[rank] = payload
                if len(received) == len(self.connections):
                    return [received[rank] for rank in range(len(received))]
            elif rank not in received:
                error = error_in(payload) if got == ERROR else None if got is None else {"words": "sent nonsense"}
                failures.append((rank, error))
                deadline = min(deadline, time.monotonic() + GRACE_S)
                if len(failures) + len(received) == len(self.connections):
                    break
        if failures:
            raise worst(failures)
        waiting = [rank for rank in range(len(self.connections)) if rank not in received]
        ranks = ", ".join(map(str, waiting))
        raise Failed(too_late(kind, f"rank{'s' * (len(waiting) > 1)} {ranks}", timeout_s))

    def _messages(self, left_s: Callable[[], float]) -> Iterator[tuple[int, bytes | None, bytes]]:
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
            while selector.get_map() and (timeout := left_s()) > 0:
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


def error_in(payload: bytes) -> dict[str, str]:
    """What a rank says of its error; it may say anything."""
    try:
        error = json.loads(payload[:20_000])
        return {key: str(error.get(key, ""))[:2000] for key in ("kind", "name", "words", "where")}
    except (ValueError, AttributeError, RecursionError):
        return {"words": "sent nonsense"}


def worst(failures: list[tuple[int, dict | None]]) -> Failed:
    """The failure that explains the others: a process that ended, else the first error that is not its echo."""
    def is_echo(error: dict | None) -> bool:
        return error is not None and "onnection" in error["words"]  # "Connection closed by peer": another one ended
    rank, error = next((one for one in failures if not is_echo(one[1])), failures[0])
    if error is None:
        return Failed(f"rank {rank} ended without an answer: its process was ended (os._exit, a crash, or a limit on "
                      "memory, time or the size of files)")
    if error.get("kind") == "not written":
        return Failed("not written yet" + (f" ({error['words']})" if error["words"] else ""), "not written")
    if error.get("kind") == "refused":
        return Failed(f"{error['words']} ({error['where']})", "refused")
    name = f"{error['name']}: " if error.get("name") else ""
    where = f" ({error['where']})" if error.get("where") else ""
    return Failed(f"rank {rank}: {name}{error['words']}{where}")


def too_late(kind: bytes, who: str, timeout_s: float) -> str:
    if kind == LOADED:
        return f"the solution cell itself did not end within {timeout_s:g} s on {who}: keep experiments in other cells"
    return (f"{who} did not finish within {timeout_s:g} s: look for a receive that nobody sends to, a circle in which "
            "all send first, or a loop without an end")


def owners_of(messages: list[bytes]) -> dict[tuple[int, int], tuple[int, int]]:
    """Which connection, by its two ports, leads from which rank to which. Said before any student code was there."""
    ports = [json.loads(message) for message in messages]
    rank_at = {own: rank for rank, pairs in enumerate(ports) for own, _ in pairs}
    return {(own, other): (rank_at[own], rank_at[other]) for pairs in ports for own, other in pairs if other in rank_at}


def counted(owners: dict[tuple[int, int], tuple[int, int]], before: dict, after: dict, world_size: int) -> Traffic:
    """What the operating system counted between two readings. Failed where bytes took another way."""
    start = {(own, other): num for own, other, num in before["connections"]}
    end = {(own, other): num for own, other, num in after["connections"]}
    sent = [[0] * world_size for _ in range(world_size)]
    for ends, (source, target) in owners.items():
        if ends not in start or ends not in end:
            raise Failed("the connections between the ranks were closed: keep the process group as it is", "refused")
        sent[source][target] += end[ends] - start[ends]
    if "lo_bytes" in after:
        over_network = (after["lo_bytes"] - before["lo_bytes"]
                        - HEADERS_OF_SEGMENT * (after["segments"] - before["segments"]))
        known = sum(map(sum, sent))
        if over_network > known * 1.03 + 8192 or after["local_sockets"] > 0:
            raise Failed("data went between the ranks by another way than the process group: use dist.send and "
                         "dist.recv alone", "refused")
    return Traffic(sent, exact=False)


def claimed(logs: list[Any]) -> Traffic:
    """What the ranks themselves say they sent."""
    sent = [[0] * len(logs) for _ in logs]
    try:
        for rank, log in enumerate(logs):
            for peer, num_bytes in log:
                sent[rank][peer] += int(num_bytes)
    except (TypeError, ValueError, IndexError):
        raise Failed("the count of bytes came back damaged") from None
    return Traffic(sent, exact=True)


def read(payload: bytes, max_bytes: int) -> dict[str, Any]:
    """A rank's reply: checked for its sizes first, then read as plain data, then taken apart. Failed for all else."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise Failed("the result is not as torch.save writes it")
        # On "meta" tensors have a size and no memory: a small file may describe a huge tensor.
        sizes = torch.load(io.BytesIO(payload), weights_only=True, map_location="meta")
        check(sizes, max_bytes)
        reply = torch.load(io.BytesIO(payload), weights_only=True)
        if type(reply) is not dict or "answer" not in reply:
            raise Failed("the result is not as the grader wrote it")
        return reply
    except Failed:
        raise
    except Exception as error:  # whatever a forged file makes torch or zipfile raise: it is their word that it is bad
        raise Failed(f"the result cannot be read as tensors and numbers ({type(error).__name__})") from None


def check(value: Any, max_bytes: int, depth: int = 0) -> int:
    """Bytes of all tensors in `value`. Failed above `max_bytes`, and for types that no answer needs."""
    if depth > 10:
        raise Failed("the result is nested too deeply")
    if type(value) is torch.Tensor:
        if value.layout is not torch.strided or value.is_quantized:
            raise Failed("the result holds a tensor that is not a plain one")
        total = value.numel() * value.element_size()
    elif type(value) in (list, tuple, dict):
        parts = [*value.keys(), *value.values()] if type(value) is dict else value
        total = sum(check(part, max_bytes, depth + 1) for part in parts)
    elif value is None or type(value) in (bool, int, float, str):
        total = 0
    else:
        raise Failed(f"the result holds a {type(value).__name__}: expected tensors, numbers, strings, lists and dicts")
    if total > max_bytes:
        raise Failed(f"the result holds more than {max_bytes:,} bytes")
    return total
