"""One rank of one trial under TrustedGrade, forked by main.py: joins the others, then meets student code.

The order is the point. First it gives up what it may do; then it joins the process group and says by which ports, while
the process is still all ours; only then come the student's statements, and last the inputs, which existed nowhere else.
Whatever it says from there on is a claim: a tensor may be right or wrong, and the bytes are counted elsewhere.
"""

import io
import json
import linecache
import math
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from course_lib.grading.on_rank import limit_computing
from course_lib.grading.trusted.inside import doors, frames, privileges
from course_lib.grading.trusted.inside.needs import NOWHERE, SHARE, SHARE_OF_DOUBTFUL, Statement, explain_failure
from course_lib.grading.trusted.inside.student_code import Code, lost_words
from course_lib.runtime import staging
from course_lib.runtime.instruments import pending
from course_lib.runtime.ranks.watcher import busy_s

READY, GO, LOADED, INPUTS, ANSWER, ERROR, LATE = b"R", b"G", b"L", b"I", b"A", b"E", b"W"
QUESTION, REPLY, NO_REPLY, TRIED = b"Q", b"P", b"N", b"T"
sending = threading.Lock()  # the answer and a word about being late must not mix
MAX_MESSAGE = 2000  # characters of an error that are kept
MAX_TRIED = 20  # of what a rank tells the teacher of, 200 characters each


@dataclass(frozen=True)
class RankTask:
    """What a rank has to do, all of it known before the fork."""

    run: Callable[[Callable, Any], Any]  # of the exercise
    function: str
    operations: frozenset[str] | None
    code: Code
    store: str
    scratch: str
    world_size: int
    separate: bool  # in namespaces of its own
    uid: int | None  # the user that it becomes, None for the grader's own
    asks: bool  # whether `run` may ask the grader
    count_inside: bool  # count what is sent here too: nobody outside does, or the cause of a mistake is looked for
    limits: dict[str, float]

    @classmethod
    def of_settings(cls, **values: Any) -> "RankTask":
        """The task made of those `values` that are its fields; the others are left out."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def be_rank(task: RankTask, rank: int, connection: socket.socket) -> None:
    """The whole life of a rank's process, which ends when somebody kills it."""
    staging.complete_gloo()  # torch reads files for it, which confine forbids
    confine(task, connection)  # first: it closes all descriptors, and those of the process group come next
    dist.init_process_group("gloo", store=dist.FileStore(task.store, task.world_size), rank=rank,
                            world_size=task.world_size, timeout=timedelta(seconds=300))
    dist.barrier()  # or a slow rank would still be connecting while a fast one already fails
    frames.send(connection, READY, json.dumps(ports()).encode())
    frames.receive(connection)  # GO: what we met over is closed to writing now
    close_doors(task, connection)  # not before: joining took sockets, and a barrier
    say_where_when_late(task, connection)
    namespace, failures = execute(task.code, task.limits["trial_s"])
    with sending:
        frames.send(connection, LOADED)
    _, inputs = frames.receive(connection)
    try:
        given = torch.load(io.BytesIO(inputs), weights_only=True)
        payload = ANSWER, answer(task, namespace, failures, given, connection)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: here is where the student's code ends
        payload = ERROR, error_message(error, task)
    with sending:
        frames.send(connection, *payload)
    while True:  # stay, or the others would see a closed connection
        frames.receive(connection)


def confine(task: RankTask, connection: socket.socket) -> None:
    """Give up whatever student code must not have: files, descriptors, memory, time, the user's rights. Nothing of it
    comes back.
    """
    limits = task.limits
    if privileges.LINUX:
        privileges.be_ended_first()
    if task.separate:
        privileges.own_view_of_files(limits["file_bytes"])
    os.chdir(os.environ["HOME"] if task.separate else task.scratch)
    keep = connection.fileno()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, keep)  # the ends of other ranks' connections among them: a rank may speak only for itself
    os.closerange(keep + 1, 4096)
    privileges.limit(limits["memory_bytes"], limits["file_bytes"], limits["processes"], limits["cpu_s"])
    if task.separate or task.uid is not None:
        privileges.give_up_privileges(task.uid)
    elif privileges.LINUX:  # at least no program with the set-user-ID bit may give it more
        privileges.set_process_option(privileges.PR_SET_NO_NEW_PRIVS, 1)
    torch.default_generator.manual_seed(0)  # without the 10 ms of torch.manual_seed, which looks for GPUs
    random.seed(0)  # a fork seeds it anew: a table that is drawn in a cell has to be the same on all ranks


def close_doors(task: RankTask, connection: socket.socket) -> None:
    """Refuse what student code must not do from here on, and tell the grader what it tries."""
    told: set[str] = set()

    def tell(what: str) -> None:
        what = what[:200]
        if what not in told and len(told) < MAX_TRIED:
            told.add(what)
            with sending:
                frames.send(connection, TRIED, json.dumps(what).encode())

    with nullcontext() if task.separate else suppress(OSError):  # where this cannot be, the grader has said so
        privileges.filter_system_calls()
    doors.forbid(task.operations, tell)
    doors.audit(frozenset(task.code.sources), tell)


def ports() -> list[tuple[int, int]]:
    """(own port, other end's port) of every connection of this process."""
    found = []
    for name in os.listdir("/proc/self/fd" if privileges.LINUX else "/dev/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    found.append((one.getsockname()[1], one.getpeername()[1]))
        except OSError:  # no socket, or one that listens
            pass
    return found


class NotWritten(Exception):
    """The student's cells define no function of the name that is asked for."""


def execute(code: Code, trial_s: float) -> tuple[dict[str, Any], list[BaseException]]:
    """Execute the statements one by one, those of other cells for a share of `trial_s` each. Returns the student's
    namespace, and what the own statements that failed raised; what others should have given is noted in `code`.
    """
    module = ModuleType("__main__")
    sys.modules["__main__"] = module  # so that classes of the student know where they live
    for file, source in code.sources.items():
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    failures: list[BaseException] = []
    for statement in code.statements:
        try:
            share = SHARE if statement.is_sure else SHARE_OF_DOUBTFUL
            with nullcontext() if statement.own else limit_computing(trial_s * share):
                statement.run(module.__dict__)
        except BaseException as error:
            if statement.own:
                failures.append(error)
            else:
                note_lost(code, statement, error)
    return module.__dict__, failures


def note_lost(code: Code, statement: Statement, error: BaseException) -> None:
    """Remember what the names of a statement lack: for one that lacks another name, that one's reason."""
    because = code.lost.get(getattr(error, "name", None) or "")
    why = statement.why or explain_failure(error)
    for name in statement.given:
        code.lost[name] = because or lost_words(name, statement.line, why)
        code.failed.append(code.lost[name])


def say_where_when_late(task: RankTask, connection: socket.socket) -> None:
    """From shortly before time is up, tell the grader where this rank is, what it waits for and what it has used."""
    ours, limit_s = threading.current_thread().ident, task.limits["trial_s"]
    def say() -> None:
        time.sleep(0.6 * limit_s)
        while True:
            where, _, _ = line_in(traceback.extract_stack(sys._current_frames().get(ours)), task.code)
            waits = [f"call {call.number}: {call}" for call in list(pending.waiting_in.get(ours, ()))[:1]]
            seen = {"where": where[:MAX_MESSAGE], "waits": "".join(waits), "busy_s": busy_s(),
                    "cpu_s": time.process_time(), "clock_s": time.monotonic()}
            with sending:
                frames.send(connection, LATE, json.dumps(seen).encode())
            time.sleep(0.15 * limit_s)
    threading.Thread(target=say, daemon=True).start()  # daemon: or it would keep alive a rank that has ended


def line_in(stack: traceback.StackSummary, code: Code) -> tuple[str, str, str]:
    """The last line in the student's cells, in words; the last function of all, and the last line."""
    where, function, line = "", "", ""
    for frame in stack:
        function, line = frame.name, frame.line or ""
        if frame.filename in code.sources:
            where = f"{frame.filename.strip('<>')}, line {frame.lineno}: {line.strip()}"
    return where, function, line


def answer(task: RankTask, namespace: dict[str, Any], failures: list[BaseException], inputs: Any,
           connection: socket.socket) -> bytes:
    """What the student's function returns on this rank's inputs, as bytes. NotWritten where there is no such function.
    """
    function = namespace.get(task.function)
    if not callable(function):
        if failures or task.function in task.code.lost:
            raise failures[-1] if failures else NameError(f"no {task.function}", name=task.function)
        raise NotWritten(f"not written yet: no function {task.function} in the cells above the check cell")
    def ask(question: Any) -> Any:
        """What the grader says to it. ValueError where it cannot be asked."""
        with sending:
            frames.send(connection, QUESTION, json.dumps(question).encode())
        kind, payload = frames.receive(connection)
        said = json.loads(payload)
        if kind == NO_REPLY:
            raise ValueError(said)
        return said

    from course_lib.runtime import record_communication
    with doors.no_new_groups(), record_communication() if task.count_inside else nullcontext() as log:
        result = task.run(function, inputs, *([ask] if task.asks else []))
    right = (dist.get_rank() + 1) % task.world_size  # where a collective's bytes are taken to go
    sent = [(event.peer if event.op == "send" else right, math.ceil(event.sent_bytes or 0))
            for event in log.events if event.op not in ("recv", "barrier")] if log else []
    return frames.pack({"answer": result, "sent": sent})


def serialize(value: Any) -> bytes:
    """`value` as the bytes of torch.save, which torch.load(weights_only=True) reads."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def error_message(error: BaseException, task: RankTask) -> bytes:
    """Kind, words and the last line of the student's cells, for the feedback. All of it may be forged."""
    where, raised_in, line = line_in(traceback.extract_tb(error.__traceback__), task.code)
    try:
        words = str(error)
    except BaseException:
        words = "(an error without words)"
    if isinstance(error, NameError) and error.name and "is not defined" in words:
        words = f"{words}. {task.code.lost.get(error.name, NOWHERE.format(error.name))}"
    elif task.code.failed:
        words = f"{words}. {task.code.failed[-1]}"
    kind = "refused" if isinstance(error, doors.Refused) else ""
    if isinstance(error, NotWritten):
        kind = "not written"
    elif isinstance(error, NotImplementedError) and line.startswith("raise NotImplementedError"):  # or it is torch's
        kind = "not written"
        words = "not written yet" if raised_in == task.function else f"it calls {raised_in}, which is not written yet"
    return json.dumps({"kind": kind, "name": type(error).__name__[:200], "words": words[:MAX_MESSAGE],
                       "where": where[:MAX_MESSAGE]}).encode()
