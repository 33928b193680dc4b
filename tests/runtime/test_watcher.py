"""The thread that answers "where are you?" in a rank."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest
import torch

from course_lib.runtime.ranks import watcher
from course_lib.runtime.ranks.messages import ASK, DISMISS
from course_lib.runtime.ranks.watcher import THREADS, RankWatcher, busy_s


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
