"""What happens inside a rank while somebody asks where it is or stops it, and what it has started: it ends with it."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import psutil
import pytest
import torch

from course_lib.runtime import context
from course_lib.runtime.ranks import watcher
from course_lib.runtime.ranks.messages import ASK, DISMISS
from course_lib.runtime.ranks.processes import kill_by_mark
from course_lib.runtime.ranks.watcher import (
    THREADS,
    RankWatcher,
    Stopped,
    busy_s,
    close_connections,
    close_kept,
    run_stoppable,
)

# A stop ends the reader's code and nothing else, at whatever moment it comes

@pytest.fixture
def as_in_a_rank():
    """An interrupt is a stop."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, watcher._raise)
    yield
    signal.signal(signal.SIGINT, before)


def stop_main():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of one thread to another")
def test_stops_at_any_moment_leave_the_rank_to_its_next_call(as_in_a_rank):
    """One that came between the call's end and the note that it has ended would leave the rank stoppable for ever:
    a stop as it joins a group anew then closes the connections that it is about to make.
    """
    over = threading.Event()

    def go_on_stopping():
        while not over.is_set():
            stop_main()

    thread = threading.Thread(target=go_on_stopping)
    thread.start()
    ends, calls = set(), 0
    try:
        while len(ends) < 2 or calls < 20_000:  # on a busy machine the other thread may come late
            calls += 1
            try:
                run_stoppable(lambda: sum(range(20)))
                ends.add("returned")
            except Stopped:
                ends.add("was stopped")
            assert not watcher._stoppable
    finally:
        over.set()
        thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="it has other connections")
def test_a_connection_that_is_closed_hears_no_more_and_its_peer_notices_nothing_until_it_is_let_go():
    """A write that fails in the moment that a peer asks for a message is one that gloo forgets, and waits for."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        theirs, _ = listener.accept()
        assert str(ours.fileno()) in os.listdir(watcher.DESCRIPTORS)
        with theirs, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "listdir", lambda path: [ours.fileno(), listener.fileno()])
            for _ in range(3):  # a stop may have to come again
                close_connections()
            assert len(watcher._kept) == 1
            ours.sendall(b"said")
            assert theirs.recv(4) == b"said" and ours.recv(4) == b""
            ours.close()  # as gloo does
            for _ in range(2):  # the first one would succeed in any case
                theirs.sendall(b"more")
            close_kept()
            with pytest.raises(ConnectionResetError):
                theirs.recv(4)
            assert watcher._kept == {}
            with socket.create_connection(listener.getsockname()):
                pass


# The thread that answers "where are you?"

@pytest.fixture
def notebook():
    """The notebook's end of the connection to a watcher of this very process."""
    ours, theirs = Pipe()
    watching = RankWatcher(theirs, None)
    yield ours
    ours.send(DISMISS)
    watching.stop()


@pytest.mark.parametrize("meanwhile", [True, False])
def test_being_looked_at_keeps_no_tensor_of_the_function_alive(notebook, monkeypatch, meanwhile):
    """Neither while the look takes its time nor after it: a cycle would be collected some time, too late for memory."""
    looking, over = threading.Event(), threading.Event()
    if not meanwhile:
        over.set()

    def slowly():
        looking.set()
        over.wait()
        return 0.0

    def work():
        tensor = torch.ones(3)
        notebook.send(ASK)
        looking.wait()
        if not meanwhile:
            notebook.recv()  # the watcher has seen this frame, and the tensor in it
        return weakref.ref(tensor)

    monkeypatch.setattr(watcher, "busy_s", slowly)
    gc.disable()
    try:
        assert work()() is None
    finally:
        gc.enable()
        over.set()
        if meanwhile:
            notebook.recv()


@pytest.mark.skipif(not THREADS.is_dir(), reason="elsewhere the CPU time of the process stands in for it")
def test_a_thread_is_busy_while_it_runs():
    def busy_but_for_the_asking_thread():
        with ThreadPoolExecutor(1) as asks:
            return asks.submit(busy_s).result()

    before, end = busy_but_for_the_asking_thread(), time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    assert busy_but_for_the_asking_thread() - before > 0.045


# What ranks have started is found by the mark in its environment, also in its first moment, when it has none yet

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


@pytest.mark.parametrize("instead, looks, exe, ends", [
    ({}, 3, sys.executable, True),  # its program is still being loaded
    ({"PATH": ""}, 1, sys.executable, True),  # missed at the first look
    ({}, 1000, "", False),  # a thread of the kernel, which never has an environment, is not waited for
], ids=["loading", "missed", "kernel"])
def test_a_process_with_the_mark_ends_also_where_the_first_looks_do_not_show_it(instead, looks, exe, ends, monkeypatch):
    started = [subprocess.Popen(SLEEP, env={**os.environ, context.RANK_MARK: "a launch"}) for _ in range(2)]
    hidden, seen = started
    looked, environ = Counter(), psutil.Process.environ

    def hide(process):
        looked[process.pid] += 1
        return instead if process.pid == hidden.pid and looked[process.pid] <= looks else environ(process)

    monkeypatch.setattr(psutil.Process, "environ", hide)
    monkeypatch.setattr(psutil.Process, "exe", lambda process: exe)
    try:
        kill_by_mark("another launch", spare=())
        assert hidden.poll() is None and seen.poll() is None
        assert (looked[hidden.pid] > looks) == (instead == {} and ends)
        looked.clear()
        kill_by_mark("a launch", spare=())
        assert seen.wait(timeout=10) < 0
        assert hidden.wait(timeout=10) < 0 if ends else looked[hidden.pid] <= 2 and hidden.poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()
