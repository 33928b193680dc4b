"""Ending what ranks started: child processes, and daemons that have left their parents."""

import os
import time
from collections.abc import Collection
from contextlib import suppress

import psutil

from course_lib.runtime import context

_BEGINS_WITHIN_S = 1.0  # a machine may be busy
_LOOKS = 10  # a program that starts itself again for ever would be found for ever
_DIES_WITHIN_S = 5.0  # a killed process that is inside the operating system finishes that first


def kill_tree(pid: int) -> None:
    """End a process and what it started."""
    try:
        root = psutil.Process(pid)
        # Listed before anything is killed: the children of a dead process are somebody else's.
        doomed = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    _kill(doomed)
    _wait_for_end(doomed)


def kill_own_children(spare: Collection[int] = ()) -> None:
    """End what the calling process started or adopted, until nothing of it is left but `spare` and what is theirs."""
    if spare:  # their exits are for somebody else to collect
        while strays := [child for child in psutil.Process().children() if child.pid not in spare]:
            _kill([each for child in strays for each in (child, *_children_of(child))])
            for child in strays:
                os.waitpid(child.pid, 0)
        return
    while os.name != "nt":
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # no child at all: the usual case
            return
        if not ended:
            doomed = psutil.Process().children(recursive=True)
            _kill(doomed)
            _wait_for_end(doomed)  # a child's child is not ours to collect, and has no environment left to be known by
    _kill(psutil.Process().children(recursive=True))  # Windows has nothing to collect


def _children_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_by_mark(mark: str, spare: Collection[int]) -> None:
    """End what carries the mark in its environment: also daemons, which are in no tree of processes any more.

    Looks again until nothing is found: what was found may have started something since the list was made.
    """
    for _ in range(_LOOKS):
        psutil.process_iter.cache_clear()  # a number may be another process's by now, which kill() would refuse to end
        doomed = [process for process in psutil.process_iter() if process.pid not in spare and _carries(process, mark)]
        if not doomed:
            return
        _kill(doomed)
        _wait_for_end(doomed)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        deadline = time.monotonic() + _BEGINS_WITHIN_S
        while not (environment := process.environ()) and _is_beginning(process) and time.monotonic() < deadline:
            time.sleep(0.001)
        return environment.get(context.RANK_MARK) == mark
    except (psutil.Error, OSError):  # ended meanwhile, or somebody else's
        return False


def _is_beginning(process: psutil.Process) -> bool:
    """Its program may still be being loaded, and has no environment yet. Threads of the kernel have no program."""
    return time.time() - process.create_time() < 10 * _BEGINS_WITHIN_S and bool(process.exe())


def _kill(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _wait_for_end(processes: Collection[psutil.Process]) -> None:
    deadline = time.monotonic() + _DIES_WITHIN_S
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.001)


def _runs(process: psutil.Process) -> bool:
    """Whether the process still runs: also False where it has ended and only waits to be reaped by its parent."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
