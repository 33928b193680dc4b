"""The process that forks ranks for TrustedGrade: `python -I inside/main.py CONTROL_FD SETTINGS`.

It reads the student's code but never executes it; it counts what the ranks send, by the operating system, and kills
what they leave behind. In namespaces it is process 1 of its own: everything in there ends when it does. It asks for
nothing and believes nothing that a rank says, and of an exercise it knows what runs beside the student's function:
a rank is a copy of it, and may look at all that it holds. It serves one notebook, where ranks cannot reach it; else one
exercise.
"""

import gc
import importlib
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from types import ModuleType

import psutil

CODE, START, CLOSE_STORE, COUNT, WAITED, FINISH, FAILED = b"C", b"S", b"T", b"N", b"W", b"F", b"!"
# What notebooks and runs import: here once, or in every rank.
GIVEN = ("course_lib.runtime", "course_lib.facts", "course_lib.reference", "torch.nn.functional")
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
READING_BYTES, READING_S = 1 << 30, 5  # for the cells of a notebook, which take 20 ms
UNREADABLE = (f"the cells above the check cell cannot be read: that takes more than {READING_S} s of computing or "
              f"{READING_BYTES >> 20} MiB")
# What a student's cells may import and takes long: here once where they do, or it would be time of each rank and trial.
SLOW = {"matplotlib.pyplot", "networkx", "pandas", "scipy", "sympy", "torch._dynamo"}


def main(control_fd: str, settings_text: str) -> None:
    """Import what students may import, say that it is ready, and serve the grader on `control_fd` until it hangs up."""
    settings = json.loads(settings_text)
    sys.path.insert(0, settings["course"])
    global frames, rank, privileges, traffic
    import course_lib.grading
    from course_lib.grading.trusted.inside import frames, privileges, rank, traffic
    course_lib.grading.check = lambda *_, **__: None  # notebooks import it; here others check
    for name in GIVEN:
        importlib.import_module(name)
    from course_lib.runtime.instruments import pending
    pending.install()  # or nobody could say whether a rank that is late waits for another one
    control = socket.socket(fileno=int(control_fd))
    worker = Worker(control, settings)
    frames.send(control, b"R")
    try:
        worker.serve()
    finally:  # the grader closed its end, or died, or we did
        worker.finish()


class Worker:
    """Answers the grader's requests, one at a time."""

    def __init__(self, control: socket.socket, settings: dict) -> None:
        self.control = control
        self.settings = settings
        self.separate = settings["separate"]
        self.uid = settings["uid"]  # of the ranks, None for our own
        self.asked: dict = {}  # of the exercise at hand: what a RankTask needs
        self.unreadable: list[set[str]] = []  # cells that together take too long to read
        self.store = ""
        self.number = 0
        self.watch = traffic.watch_for_collectives() if self.separate else None
        if privileges.LINUX:
            privileges.set_process_option(privileges.PR_SET_CHILD_SUBREAPER, 1)

    def serve(self) -> None:
        """Answer one request after the other; an error of the system is an answer, too."""
        requests = {CODE: self.prepare, START: self.start, CLOSE_STORE: self.close_store, COUNT: self.count,
                    WAITED: self.longest_wait, FINISH: self.finish}
        while True:
            try:
                kind, payload = frames.receive(self.control)
            except (EOFError, ConnectionError):
                return
            try:
                answer = requests[kind](*([json.loads(payload)] if payload else []))
                frames.send(self.control, kind, json.dumps(answer).encode())
            except (OSError, subprocess.SubprocessError) as error:
                frames.send(self.control, FAILED, f"{type(error).__name__}: {error}".encode())

    def prepare(self, request: dict) -> str | None:
        """Read the student's code; why it is refused, or None."""
        for module in request["imports"]:
            importlib.import_module(module)
        module, name, text = request["run"]
        operations = None if request["operations"] is None else frozenset(request["operations"])
        sources = {cell["source"] for cell in request["cells"]}
        tried = any(each <= sources for each in self.unreadable)  # by an exercise above: it would take as long again
        code = read_code([] if tried else request["cells"], operations, request["function"])
        if tried or code.refusal == UNREADABLE:
            self.unreadable.append(sources)
            code.refusal = UNREADABLE
        for slow in SLOW & code.imports():
            with suppress(ImportError):
                importlib.import_module(slow)
        if text and module not in sys.modules:  # a chapter's on_rank.py, which is shown here as no file
            sys.modules[module] = ModuleType(module)
            exec(compile(text, module, "exec"), vars(sys.modules[module]))
        self.asked = {"run": getattr(importlib.import_module(module), name), "operations": operations, "code": code,
                      "function": request["function"], "asks": request["asks"], "count_inside": request["count_inside"]}
        return code.refusal

    def start(self, world_size: int) -> None:
        """Fork the ranks around the connections that follow the request."""
        _, connections, _, _ = socket.recv_fds(self.control, 1, world_size)
        self.number += 1
        self.started, self.num_processes = time.monotonic(), world_size * (2 if self.separate else 1)
        self.store = os.path.join(self.settings["folder"], f"store-{self.number}")
        os.mkdir(self.store)
        self.give(self.store)
        if self.separate:
            privileges.mount("tmpfs", self.store, privileges.MS_NOSUID | privileges.MS_NODEV, "size=1m,mode=1777")
        gc.freeze()  # or the ranks' collectors would touch, and so copy, pages that they share with this process
        for number, connection in enumerate(connections):
            scratch = os.path.join(self.settings["folder"], f"scratch-{self.number}-{number}")
            os.makedirs(scratch, exist_ok=True)
            self.give(scratch)
            task = rank.RankTask.of_settings(
                **self.settings, **self.asked,
                store=os.path.join(self.store, "ranks"), scratch=scratch, world_size=world_size)
            # Forked, not started: torch is here already, and a new Python would take seconds to import it.
            if os.fork() == 0:
                become_rank(task, number, socket.socket(fileno=connection))
        for connection in connections:
            os.close(connection)

    def close_store(self) -> None:
        """Empty the folder over which the ranks met, and make it read-only: it would be a way around the counters."""
        for name in os.listdir(self.store):
            os.remove(os.path.join(self.store, name))
        if self.separate:
            flags = privileges.MS_REMOUNT | privileges.MS_RDONLY | privileges.MS_NOSUID | privileges.MS_NODEV
            privileges.mount("tmpfs", self.store, flags)
        elif self.uid is not None:
            os.chown(self.store, 0, 0)

    def give(self, folder: str) -> None:
        """Where ranks run as another user in the same file system: make it that user's."""
        if not self.separate and self.uid is not None:
            os.chown(folder, self.uid, self.uid)

    def count(self) -> dict:
        """What the operating system says of the network until now. Where no collective may be called, also how many
        messages of one there were since the last time.
        """
        if not self.settings["ss"]:
            return {"connections": []}
        seen = traffic.count_heads(self.watch) if self.separate else 0
        return {**traffic.count_bytes(self.settings["ss"], self.separate),
                "collectives": 0 if self.asked["operations"] is None else seen}

    def longest_wait(self) -> float:
        """The longest time that one of the ranks could have worked while others had the cores, in seconds.

        None that what the ranks started may have had: neither their threads, whose seconds count as used, nor children,
        by which everybody would get ten times the limit.
        """
        running = psutil.Process().children(recursive=True)
        if len(running) > self.num_processes:
            return 0.0
        with suppress(psutil.Error):  # one has just ended
            used_s = sum(sum(each.cpu_times()[:2]) for each in running) / NUM_CORES
            waited_s = max((waited_for_core_s(each.pid) for each in running), default=0.0)
            return max(0.0, min(waited_s, time.monotonic() - self.started - used_s))
        return 0.0

    def finish(self) -> None:
        """Kill everything that the ranks are or left behind, and wait until it is gone."""
        while True:
            if self.separate:
                try:
                    os.kill(-1, signal.SIGKILL)  # all of this process namespace but process 1, which we are
                except ProcessLookupError:
                    pass
            else:
                from course_lib.runtime.ranks import processes
                if self.uid is not None:
                    privileges.kill_processes_of(self.uid)
                processes.kill_own_children()
            try:
                ended, _ = os.waitpid(-1, os.WNOHANG)
                if not ended:
                    time.sleep(0.001)
            except ChildProcessError:
                return


def read_code(cells: list[dict], operations: frozenset[str] | None, function: str) -> object:
    """The student's Code, compiled in a child: sources can take a parser minutes and gigabytes, or end it."""
    from course_lib.grading.trusted.inside import student_code
    from course_lib.runtime.ranks import processes

    def compute() -> bytes:
        code = student_code.prepare(cells, operations, function)
        return marshal.dumps(([each.parts() for each in code.statements], code.sources, code.refusal, code.lost))

    if not (read := processes.compute_in_child(compute, READING_BYTES, READING_S)):
        return student_code.Code(refusal=UNREADABLE)
    statements, *others = marshal.loads(read)
    return student_code.Code([student_code.Statement(None, *parts) for parts in statements], *others)


def become_rank(task: object, number: int, connection: socket.socket) -> None:
    """In the forked child; never returns."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if task.separate:
            # Before the second fork: a namespace of process numbers is that of children, not of the caller.
            privileges.leave_namespaces()
            child = os.fork()  # process 1 of its namespace: what it starts ends with it
            if child:
                os.closerange(3, 4096)  # or a rank that ends would seem alive to the grader
                os.waitpid(child, 0)
                os._exit(0)
        rank.be_rank(task, number, connection)
    except BaseException as error:
        try:
            frames.send(connection, rank.ERROR, rank.error_message(error, task))
        except BaseException:
            pass
    finally:
        os._exit(1)


def waited_for_core_s(pid: int | str = "thread-self") -> float:
    """How long a process, or the calling thread, was ready to run while others had the cores; 0 where Linux is not."""
    try:
        with open(f"/proc/{pid}/schedstat") as counts:
            return int(counts.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # it ended; or this kernel does not count
        return 0.0


if __name__ == "__main__":
    main(*sys.argv[1:])
