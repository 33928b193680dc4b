"""Interrupts and kills at each moment of a team's life: no wait without an end, and what can be kept is.

A moment is a message: the first, the second ... that the notebook's process sends or receives meanwhile. `make test`
tries some of them, `.ci/run` all.
"""

import itertools
import os
import queue
import random
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import psutil
import pytest
import torch

from course_lib import tensor_parallel
from course_lib.runtime import LaunchError, LaunchTimeout, RankDied, launch, launcher, start_ranks
from course_lib.runtime.errors import LaunchInterrupted
from course_lib.runtime.ranks import fork_pool, supervisor
from course_lib.runtime.ranks.processes import RankProcess
from course_lib.runtime.ranks.showing import read_output
from course_lib.runtime.ranks.supervisor import Supervisor
from course_lib.runtime.team.rank_cell import keep_picklable
from tests.faults import inside
from tests.faults.kinds import interrupt_once
from tests.faults.traces import alive, traces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills servers that fork")

IMPORTS = "import os, time, torch, torch.distributed as dist\nr = dist.get_rank()\nkept = 3 * r"
SUM = "x = torch.ones(1)\ndist.all_reduce(x)\nx.item()"
ALL_SUMMED = {0: "2.0", 1: "2.0"}
INTERRUPTED = (KeyboardInterrupt, LaunchInterrupted)
_WITHIN_S = 60.0  # a watchdog, not a claim


def numbers(*every, few):
    """All, of which `make test` tries a few."""
    return pytest.mark.parametrize("number", [each if each in few else pytest.param(each, marks=pytest.mark.ci)
                                              for each in every])


@pytest.fixture(scope="module")
def team():
    launcher.pool().wait_for_preload()
    with start_ranks(2) as team:
        team.run_cell(IMPORTS)
        yield team


class Moment:
    """Calls `act` once, as the message of that number passes; without a number never."""

    def __init__(self):
        self.set(None, None)

    def set(self, number, act):
        self.number, self.act, self.came, self.passed = number, act, False, itertools.count(1)

    def __call__(self):
        if next(self.passed) == self.number:
            self.came = True
            self.act()


@pytest.fixture
def moment(monkeypatch):
    moment, send, receive = Moment(), Connection.send, Connection.recv

    def pass_and_send(connection, message):
        moment()
        send(connection, message)

    def receive_and_pass(connection):
        try:
            return receive(connection)
        finally:
            moment()

    monkeypatch.setattr(Connection, "send", pass_and_send)
    monkeypatch.setattr(Connection, "recv", receive_and_pass)
    return moment


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupted_at(moment, number, act):
    """Interrupt `act` at that message, where it comes to that; the interrupt is never swallowed."""
    moment.set(number, interrupt)
    try:
        act()
        deadline = time.monotonic() + _WITHIN_S
        while moment.came and time.monotonic() < deadline:  # it may come a moment later
            time.sleep(0.001)
        assert not moment.came, "the interrupt was swallowed"
    except INTERRUPTED:
        pass
    moment.set(None, None)


# Interrupts

@numbers(*range(1, 8), few=(2, 5))
def test_an_interrupt_at_any_message_of_a_call_and_of_a_look_costs_nothing(team, moment, number):
    for act in (lambda: team.run_cell(SUM), lambda: team.pull("kept"), lambda: team.push(y=1)):
        interrupted_at(moment, number, act)
        assert team.pull("kept") == [0, 3]
    assert team.alive == [0, 1] and team.run_cell(SUM) == ALL_SUMMED


@numbers(1, 2, 3, 4, 5, 6, 9, 12, few=(2, 4, 9))
def test_an_interrupt_at_any_message_of_a_start_or_a_closing_leaves_nothing_and_harms_no_other(team, moment, number):
    folder = launcher.pool().folder
    before = traces(folder)
    interrupted_at(moment, number, lambda: start_ranks(2).close())
    assert launch(os.getpid, world_size=1) != launch(os.getpid, world_size=1)  # each answer is to its own question
    assert team.run_cell(SUM) == ALL_SUMMED and launcher.pool().folder == folder
    other = start_ranks(2)
    interrupted_at(moment, number, other.close)
    assert other.alive == [] and traces(folder).since(before) == []


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_interrupts_at_random_times_cost_nothing(team, seed):
    choose = random.Random(seed)
    acts = [lambda: team.run_cell(SUM), lambda: team.pull("kept"), lambda: team.push(y=bytes(1 << 20)),
            lambda: team.run_cell("time.sleep(0.01)"), lambda: repr(team)]
    for _ in range(10):
        timer, deadline = threading.Timer(choose.uniform(0.0, 0.1), interrupt), time.monotonic() + _WITHIN_S
        with suppress(*INTERRUPTED):
            timer.start()
            try:
                while time.monotonic() < deadline:
                    choose.choice(acts)()
            finally:  # not later: it would end the whole run of tests
                timer.cancel()
                timer.join()
            pytest.fail("the interrupt was swallowed")
        assert team.pull("kept") == [0, 3]
    assert team.alive == [0, 1] and team.run_cell(SUM) == ALL_SUMMED


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_interrupt_in_a_long_message_waits_for_a_rank_that_takes_it_and_ends_one_that_does_not(goes_on):
    """Rank 1 takes what is pushed slowly, or never: a stop must not come between two parts of it."""
    with start_ranks(2) as team:
        team.run_cell(IMPORTS)
        frozen = psutil.Process(inside.rank_pids(team)[1])
        frozen.suspend()

        def go_on_once_interrupted():
            while goes_on and not inside.is_stopping(team):
                time.sleep(0.001)
            if goes_on:
                frozen.resume()

        interrupt_once(lambda: inside.task_holders(team) == {0})
        threading.Thread(target=go_on_once_interrupted, daemon=True).start()
        told = "All ranks live" if goes_on else "rank 1 did not come back"
        with inside.limits(comes_back_s=_WITHIN_S if goes_on else 3.0), pytest.raises(LaunchInterrupted, match=told):
            team.push(long=bytes(1 << 24))
        assert team.pull("kept") == ([0, 3] if goes_on else [0])
        assert not goes_on or team.run_cell(SUM) == ALL_SUMMED


def test_an_interrupt_before_a_call_or_its_thread_has_begun_or_at_its_last_item_costs_nothing(team, monkeypatch):
    with pytest.raises(LaunchError, match="made anew"):  # what is to be joined anew by the next call
        team.run_cell("if r:\n    raise ValueError\ndist.barrier()")
    interrupts = []

    def come_first(owner, name):
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: interrupts.pop()() if interrupts else whole(*given))

    def raise_interrupt():
        raise KeyboardInterrupt

    class Losing(queue.Queue):
        def get(self, *arguments, **options):
            item = super().get(*arguments, **options)
            return interrupts.pop()() if item is None and interrupts else item

    for patch in (lambda: come_first(Supervisor, "run"), lambda: come_first(supervisor, "hold_interrupts"),
                  lambda: monkeypatch.setattr(supervisor.queue, "Queue", Losing)):
        patch()
        interrupts.append(raise_interrupt)
        with pytest.raises(INTERRUPTED):
            team.run_cell(SUM)
        monkeypatch.undo()
        assert interrupts == [] and team[1]["kept"] == 3 and team.run_cell(SUM) == ALL_SUMMED


def test_a_rank_that_can_open_no_file_any_more_is_stopped_and_hears_the_next_look():
    with start_ranks(2) as team:
        team.run_cell(f"{IMPORTS}\nimport resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)")
        with inside.call_limit(team, 1.5), pytest.raises(LaunchError, match="All ranks live"):
            team.run_cell("if r:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))\ntime.sleep(1000)")
        team[1].eval("resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))")
        assert team.pull("kept") == [0, 3] and team.run_cell(SUM) == ALL_SUMMED


# Kills

def wait_for_ends(pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                assert select.select([handle], [], [], _WITHIN_S)[0], f"process {pid} lives"
            finally:
                os.close(handle)


@numbers(*range(1, 6), few=(3,))
@pytest.mark.parametrize("kind", ["rank 1", "the team's server",
                                  pytest.param("the first server", marks=pytest.mark.ci)])
def test_a_kill_at_any_message_of_a_call_is_told_and_leaves_nothing(moment, kind, number):
    launcher.pool().wait_for_preload()
    team = start_ranks(2)
    team.run_cell(IMPORTS)
    pids = inside.rank_pids(team)
    victim = pids[1] if kind == "rank 1" else inside.server_pid(team if kind == "the team's server" else None)
    moment.set(number, lambda: os.kill(victim, signal.SIGKILL))
    with suppress(LaunchError):  # where it came as all had returned, the call has its results
        team.run_cell(SUM)
    if not moment.came:
        os.kill(victim, signal.SIGKILL)
    moment.set(None, None)
    wait_for_ends([victim] if kind == "rank 1" else pids)  # a server's ranks follow it, one call may come before that
    with pytest.raises(LaunchError):
        team.run_cell(SUM)
    if kind == "rank 1":
        assert team.alive == [0] and team[0]["kept"] == 0
    else:
        assert not any(map(alive, pids))
    team.close()
    assert not any(map(alive, pids))
    launcher.pool().wait_for_preload()
    with start_ranks(2) as other:
        assert other.run_cell(f"{IMPORTS}\n{SUM}") == ALL_SUMMED


@numbers(3, 4, 5, 7, 9, 11, few=(5,))
def test_a_kill_of_what_was_started_last_at_any_message_of_a_start_is_told(moment, number):
    with start_ranks(2) as team:
        before = traces(launcher.pool().folder)

        def kill_the_youngest():
            now = traces(launcher.pool().folder).processes - before.processes
            if now:
                max(map(psutil.Process, now), key=psutil.Process.create_time).kill()

        moment.set(number, kill_the_youngest)
        with suppress(LaunchError):
            start_ranks(2).close()
        moment.set(None, None)
        assert team.run_cell(f"{IMPORTS}\n{SUM}") == ALL_SUMMED
        assert traces(launcher.pool().folder).since(before) == []


@pytest.mark.parametrize("number, start, error", [
    (signal.SIGKILL, lambda: launch(os.getpid, world_size=2), RankDied),
    (signal.SIGKILL, lambda: start_ranks(2), RankDied),
    (signal.SIGSTOP, lambda: launch(len, bytes(1 << 24), world_size=2, timeout=1.5), LaunchTimeout),
], ids=["launch", "start_ranks", "a launch whose rank stops"])
def test_a_rank_that_dies_or_stops_before_it_is_spoken_to_is_told(number, start, error, monkeypatch):
    """One that stops never takes its task, which is longer than a pipe."""
    launcher.pool().wait_for_preload()
    ask, forked = fork_pool.ForkPool.ask, []

    def ask_and_kill(self, *request, handles=()):
        answer = ask(self, *request, handles=handles)
        if request[0] == "fork":
            forked.append(answer)
            if len(forked) == 2:
                os.kill(answer, number)
                wait_for_ends([answer] if number == signal.SIGKILL else [])
        return answer

    monkeypatch.setattr(fork_pool.ForkPool, "ask", ask_and_kill)
    with pytest.raises(error, match="1"):
        start()
    assert not any(map(alive, forked))


# Readers of output

def test_what_one_read_brings_of_two_calls_is_each_calls_own():
    """On a machine that has stood still, a reader may find the ends of two calls at once."""
    readable, writable = os.pipe()
    with open(readable, "rb", buffering=0) as stream, open(writable, "wb", buffering=0) as pipe:
        process, shown = RankProcess(0, 0, None, {"stdout": stream}, b"\0end\0"), []
        pipe.write(b"first\0end\0second\0end\0third")
        for _ in range(2):
            read_output(process, "stdout", lambda *item: shown.append(item[2]))
        assert b"".join(shown) == b"firstsecond" and process.unread == {"stdout": b"third"}


def test_a_cell_may_mention_a_module_of_a_class_of_its_own():
    """As torch.backends.mkldnn is one, and a package of the course that loads its names on use."""
    for module in (torch.backends.mkldnn, tensor_parallel):
        assert keep_picklable({"module": module, "one": 1}) == {"module": module, "one": 1}
