"""Benchmarks in processes of their own: one that hangs is ended with all that it started, and the next one goes on."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import psutil

from benchmarks.harness import EVENTS, PREPARATION, Benchmark, Failure, Result, Seconds

ROOT = Path(__file__).resolve().parents[1]
_POLL_S = 0.1
_IMPORTS_WITHIN_S = 120.0  # torch and DeepSpeed on a busy machine
_LEAVES_WITHIN_S = 15.0  # browsers, servers and kernels are stopped at exit
_DIES_WITHIN_S = 10.0  # a killed process that is inside the operating system finishes that first


class Hung(Exception):
    """Nothing was heard of a child for too long."""


class Child:
    """A Python process that does one thing after the other and tells of it (harness.tell): `with Child(...) as child:`.

    `command` is what follows `python`. Whatever it starts carries the name of its file of events in the environment,
    daemons included, and is ended at the end of the `with`.
    """

    def __init__(self, command: Sequence[str], deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark_", ignore_cleanup_errors=True)
        self._events, log = Path(self._folder.name, "events"), Path(self._folder.name, "log")
        self._events.touch()
        with log.open("w") as output:  # a file and no pipe, which a child of the child could keep open
            self._process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, env={**os.environ, EVENTS: str(self._events)})

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVES_WITHIN_S)
        self._end()
        self._folder.cleanup()

    def events(self) -> Iterator[list]:
        """What it tells, as it comes, until its process has ended.

        Raises Hung after `deadline_s` seconds without a word.
        """
        heard, patience_s, unfinished = time.monotonic(), max(self._deadline_s, _IMPORTS_WITHIN_S), ""
        with self._events.open(encoding="utf-8") as told:
            while True:
                running = self._process.poll() is None  # before reading, or its last words would be missed
                *lines, unfinished = (unfinished + told.read()).split("\n")
                yield from map(json.loads, lines)
                if lines:
                    heard, patience_s = time.monotonic(), self._deadline_s
                elif not running:
                    return
                elif time.monotonic() - heard > patience_s:
                    raise Hung(f"hung: nothing happened for {patience_s:g} s")
                else:
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(_POLL_S)

    def how_it_ended(self) -> str:
        code = self._process.poll()
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return f"gave no result: its process {how}"

    def _end(self) -> None:
        """Kill the process and what it started, until nothing of it is left."""
        until = time.monotonic() + _DIES_WITHIN_S
        while (doomed := self._alive()) and time.monotonic() < until:
            for process in doomed:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(doomed, timeout=_POLL_S)
        self._process.poll()

    def _alive(self) -> list[psutil.Process]:
        found = {process for process in psutil.process_iter() if self._is_marked(process)}
        with suppress(psutil.Error):
            own = psutil.Process(self._process.pid)
            found |= {own, *own.children(recursive=True)} if self._process.returncode is None else set()
        return list(filter(_runs, found))

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(EVENTS) == str(self._events)
        except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
            return False


def _runs(process: psutil.Process) -> bool:
    """Also False for what only waits to be reaped by its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def results(chosen: Sequence[Benchmark], deadline_s: float,
            after_turn: Callable[[str], None] = lambda name: None) -> Iterator[Result]:
    """A result of each, in order, as soon as it is there; `after_turn` hears the name after each of its turns.

    Benchmarks of one module share a process as long as it lives. A benchmark in which nothing happens for
    `deadline_s` seconds (a turn of one side, or what is prepared before) has failed, as one that raises has.
    """
    for module, group in groupby(chosen, key=lambda one: one.make.__module__):
        left = [one.name for one in group]
        while left:
            for result in _until_the_first_failure(module, left, deadline_s, after_turn):
                left.remove(result.name)
                yield result


def _until_the_first_failure(module: str, names: Sequence[str], deadline_s: float,
                             after_turn: Callable[[str], None]) -> Iterator[Result]:
    unfinished, side, turns, failure = list(names), PREPARATION, [], None
    try:
        with Child(["-m", "benchmarks.child", module, *names], deadline_s) as child:
            for kind, *values in child.events():
                if kind == "side":
                    (side,) = values
                elif kind == "turn":
                    turns.append([Seconds(*side_took) for side_took in values])
                    after_turn(unfinished[0])
                elif kind == "failed":
                    failure = Failure(side, f"raised {values[0]}")
                    break
                elif kind == "ends":
                    yield Result(unfinished.pop(0), turns)
                    turns = []
                    if not unfinished:
                        break
            else:
                failure = Failure(side, child.how_it_ended())
    except Hung as hung:
        failure = Failure(side, str(hung))
    if failure:
        yield Result(unfinished[0], turns, failure)
