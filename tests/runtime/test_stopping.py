"""A stop ends the reader's code and nothing else, at whatever moment it comes."""

import os
import signal
import socket
import sys
import threading

import pytest

from course_lib.runtime.ranks import watcher
from course_lib.runtime.ranks.watcher import Stopped, close_connections, close_kept, run_stoppable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of one thread to another")


@pytest.fixture(autouse=True)
def _handlers():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, watcher._raise)
    yield
    signal.signal(signal.SIGINT, before)


def stop_main():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_stops_at_any_moment_leave_the_rank_to_its_next_call():
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
