"""Ranks that stay keep what they hold, run cells, and answer for it; a launch beside them changes nothing."""

import gc
import os
import sys
import threading
from dataclasses import dataclass

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import (
    RankFailed,
    TeamEnded,
    launch,
    record_communication,
    record_memory,
    record_timeline,
    start_ranks,
)
from course_lib.runtime.ranks.pools import pool
from course_lib.runtime.team.rank_cell import is_code
from course_lib.runtime.team.team import newest_team
from tests.faults import inside
from tests.faults.kinds import rank_sum
from tests.faults.traces import traces

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_WITHIN_S = 60.0  # a watchdog, not a claim
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, or forks")


@pytest.fixture(scope="module")
def team():
    with start_ranks(3) as team:
        team.run_cell("import torch, torch.distributed as dist\nr = dist.get_rank()")
        yield team


def test_a_call_in_a_team_gives_what_a_launch_gives_from_the_same_processes_each_time(team):
    assert list(team.run(rank_sum)) == list(launch(rank_sum, world_size=3)) == [3.0] * 3
    assert team.alive == [0, 1, 2]
    assert list(team.run(os.getpid)) == list(team.run(os.getpid)) == inside.rank_pids(team)
    with start_ranks(1, env={"FLAVOUR": "plain"}) as alone:
        assert list(alone.run(rank_sum)) == [0.0]
        assert alone[0].eval("__import__('os').environ['FLAVOUR']") == "plain"


def test_names_that_a_cell_makes_are_there_in_the_next_cell_and_differ_by_rank(team):
    team.run_cell("mine = torch.full((2,), float(dist.get_rank()))", scope=globals())
    team.run_cell("mine += 1")
    assert [tensor.tolist() for tensor in team.pull("mine")] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert team[2]["mine"].tolist() == [3.0, 3.0] and team[1].eval("mine.sum().item()") == 4.0
    assert list(team.run(lambda: mine.sum().item())) == [2.0, 4.0, 6.0]  # noqa: F821  only the ranks have it
    team.run_cell("class Point:\n    def __init__(self, x):\n        self.x = x\n\np = Point(3)")
    assert team.run_cell("isinstance(p, Point), p.x")[1] == "(True, 3)" and team[0]["p"].x == 3


def test_the_value_of_the_last_expression_comes_by_rank_and_equal_ones_together(team):
    assert team.run_cell("r // 2") == {0: "0", 1: "0", 2: "1"}
    assert repr(team.run_cell("r // 2")) == "ranks 0, 1: 0\nrank 2:     1"
    assert team.run_cell("7;") is None and team.run_cell("x = 7") is None and team.run_cell("None") is None
    assert repr(team.run_cell("'a\\nb' and torch.eye(2)", [1])) == ("rank 1: tensor([[1., 0.],\n"
                                                                   "                [0., 1.]])")


def test_what_is_pushed_is_each_ranks_own_copy_and_a_cell_for_some_ranks_leaves_the_others_alone(team):
    batch = torch.zeros(2)
    team.push(batch=batch, chosen=False)
    team.run_cell("batch += r")
    team.run_cell("chosen = True", ranks=[0, 2])
    assert [each.tolist() for each in team.pull("batch")] == [[0, 0], [1, 1], [2, 2]] and batch.tolist() == [0, 0]
    assert team.pull("chosen") == [True, False, True]
    team.run_cell("batch = torch.ones(1)", [1])
    assert team[1]["batch"].tolist() == [1.0] and team[2]["batch"].tolist() == [2.0, 2.0]


@dataclass(frozen=True)
class Setup:
    """A reader's own: what cannot be set anew may hold what can be trained."""

    what: object


def test_names_that_ranks_do_not_have_are_the_notebooks_functions_anew_each_time_and_data_once(team):
    scope = {"double": lambda x: 2 * x, "start": [1], "torch": torch}
    assert team.run_cell("start.append(dist_free := double(3)); start", scope=scope)[0] == "[1, 6]"
    scope |= {"double": lambda x: 3 * x, "start": [100]}
    assert team.run_cell("start.append(double(3)); start", scope=scope)[0] == "[1, 6, 9]"
    team.run_cell("double = abs")
    assert team.run_cell("double(-4)", scope=scope)[0] == "4"
    assert all(map(is_code, (3, (1, "a"), Setup(2), Setup)))
    assert not any(map(is_code, ([1], Setup([1]), Setup(torch.nn.Linear(1, 1)))))


def test_what_cannot_be_asked_of_a_team_is_refused_with_what_there_is(team, snapshot):
    with start_ranks(1) as alone:
        alone.push(alpha=1)
        said = []
        for error, ask in ((KeyError, lambda: alone[0]["beta"]), (KeyError, lambda: alone.pull("beta")),
                           (ValueError, lambda: team.run(3)), (IndexError, lambda: team[3]),
                           (ValueError, lambda: team.run_cell("1", ranks=[5]))):
            with pytest.raises(error) as refused:
                ask()
            said.append(str(refused.value))
    assert "\n".join(said) == snapshot
    with pytest.raises(SyntaxError):
        team.run_cell("started = True\nfor")
    with pytest.raises(KeyError):  # what does not parse reaches no rank
        team.pull("started")
    with pytest.raises(RankFailed, match="start_ranks was called inside a rank"):
        team.run(lambda: start_ranks(1))


def test_random_numbers_go_on_from_cell_to_cell_as_in_one_process():
    with start_ranks(2, seed=3) as team:
        for name in "ab":
            team.run_cell(f"{name} = torch.rand(1)", scope=globals())
        torch.manual_seed(3)
        assert [team.pull(name) for name in "ab"] == [[torch.rand(1)] * 2 for _ in range(2)]


def test_a_collective_of_one_cell_is_waited_for_and_a_message_received_in_the_next(team):
    team.run_cell("x = torch.ones(2)\nwork = dist.all_reduce(x, async_op=True)")
    assert team.run_cell("work.wait()\nx.tolist()")[0] == "[3.0, 3.0]"
    team.run_cell("sent = dist.isend(torch.full((2,), 5.0), dst=1)", [0])
    assert team.run_cell("got = torch.zeros(2)\ndist.recv(got, src=0)\ngot.tolist()", [1]) == {1: "[5.0, 5.0]"}
    team.run_cell("sent.wait()", [0])


# Recordings

def test_what_a_call_records_comes_with_its_results_and_not_with_the_next_ones(team):
    def record(fails):
        with record_communication(), record_memory(), record_timeline():
            dist.all_reduce(torch.ones(4))
            assert not fails

    with pytest.raises(RankFailed):
        team.run(record, fails=True)
    ran = team.run(record, fails=False)
    assert [event.op for event in ran.communication.events] == ["all_reduce"] * 3
    assert ran.memory.peak >= 16 and ran.timeline.ranks == (0, 1, 2)
    with pytest.raises(ValueError, match="nothing was recorded"):
        team.run(rank_sum).communication  # noqa: B018


def test_bytes_memory_and_time_are_recorded_from_cell_to_cell(team):
    team.run_cell("recorders = [record_communication(), record_memory(), record_timeline()]\n"
                  "log, memory, timeline = [each.__enter__() for each in recorders]", scope=globals())
    for _ in range(2):
        team.run_cell("held = torch.zeros(1000)\ndist.all_reduce(torch.ones(4))")
    team.run_cell("[each.__exit__(None, None, None) for each in reversed(recorders)]")
    team.run_cell("dist.all_reduce(torch.ones(4))")
    assert [log.calls("all_reduce") for log in team.pull("log")] == [2, 2, 2]
    assert [log.peak >= 4000 for log in team.pull("memory")] == [True] * 3
    assert all(any(event.name == "all_reduce" for event in log.events) for log in team.pull("timeline"))


# What it says of itself

TRAINS = """
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
tied = model.weight
"""


def test_a_team_says_who_is_alive_what_each_rank_holds_and_what_it_did_until_it_is_closed():
    with start_ranks(2) as team:
        assert repr(team).splitlines()[1] == "  rank 0  has run nothing yet; holds nothing"
        team.run_cell(TRAINS, scope=globals())
        held = team.holdings()[1]
        assert held.by_kind == {"parameters": 32, "gradients": 32, "optimizer_state": 32, "other": 0}
        assert [each.name for each in held.names] == ["optimizer", "model", "tied"]
        told = repr(team)
        assert told.startswith("Team of 2 ranks over gloo: ready\n  rank 0  has run <cell ")
        assert "parameters 32 B, gradients 32 B, optimizer state 32 B: optimizer, model, tied" in told
        assert "<table>" in team._repr_html_()
    team.close()  # again: it does nothing
    assert repr(team) == "Team of 2 ranks over gloo: closed\n  rank 0  has ended\n  rank 1  has ended"
    assert team.alive == []
    for ask in (lambda: team.run(rank_sum), lambda: team[0]["x"]):
        with pytest.raises(TeamEnded, match="this team is closed"):
            ask()


def test_a_snapshot_has_the_first_values_of_each_tensor_and_counts_one_once_however_many_names_see_it():
    with start_ranks(1) as team:
        team.run_cell("x = torch.zeros(100)\ny = x[:10]\nz = {'a': [x, torch.zeros(5)]}", scope=globals())
        assert team.holdings()[0].by_kind["other"] == 420
        team.run_cell("del y\nx = torch.arange(40.0).view(2, 20)\nn = 3", scope=globals())
        team.run_cell("z = torch.ones(2, dtype=torch.complex64)", scope=globals())
        taken = team.snapshot()[0]
        assert [each["name"] for each in taken["names"]] == ["x", "z", "n"] and taken["by_kind"]["other"] == 176
        assert taken["names"][0]["values"] == [[*map(float, range(12))], [*map(float, range(20, 32))]]
        assert taken["names"][1]["values"] == taken["names"][2]["values"] == []
        assert taken["names"][2]["what"] == "3" and taken["where"].startswith("has run <cell")


def test_a_team_at_work_says_where_each_rank_is(team, tmp_path):
    cell = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}):\n    time.sleep(0.01)"
    thread = threading.Thread(target=team.run_cell, args=(cell,), daemon=True)
    thread.start()
    while "rank 1  is at <cell" not in repr(team):
        assert thread.is_alive()
    assert repr(team).startswith("Team of 3 ranks over gloo: at work") and team.is_busy
    (tmp_path / "go").touch()
    thread.join()
    assert "rank 1  has run <cell" in repr(team)


# Several teams, and launches

def test_two_teams_and_a_launch_live_side_by_side(team):
    with start_ranks(2) as other:
        other.push(who="other")
        team.push(who="first")
        assert newest_team() is other
        assert list(launch(rank_sum, world_size=2)) == [1.0, 1.0]
        assert other.pull("who") == ["other"] * 2 and team.pull("who") == ["first"] * 3
    assert newest_team() is team and list(team.run(rank_sum)) == [3.0] * 3


@linux_only
def test_a_closed_team_leaves_nothing_behind_nor_does_one_that_is_forgotten(tmp_path, monkeypatch):
    pool().wait_for_preload()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = traces(pool().folder, tmp_path)
    with start_ranks(2) as team:
        team.run_cell("import subprocess\nstarted = subprocess.Popen(['sleep', '1000'])")
    assert traces(pool().folder, tmp_path).since(before) == []
    forgotten = start_ranks(1)
    del forgotten
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "course_lib closes a team":
            thread.join(_WITHIN_S)
    assert traces(pool().folder, tmp_path).since(before) == []
