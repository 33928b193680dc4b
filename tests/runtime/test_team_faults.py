"""Whatever goes wrong in ranks that stay, what can be kept is, the next cell runs, and at the end nothing is left."""

import os
import signal
import sys
import threading
import time

import pytest

from course_lib.runtime import TeamEnded, start_ranks
from course_lib.runtime.ranks import supervisor
from course_lib.runtime.ranks.pools import pool
from tests.faults.in_team import ALL, GOES_ON, SESSION, TEAM_FAULTS, time_limit
from tests.faults.traces import traces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

_living: list = []  # the team of the session that goes on


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    patch = pytest.MonkeyPatch()
    patch.setattr(supervisor, "_STILL_S", 1.0)  # nothing in these cells stands still for so long by chance
    patch.setenv("TMPDIR", str(folder))
    patch.chdir(folder)
    pool().wait_for_preload()
    before = traces(pool().folder, folder)
    yield
    for team in _living:
        team.close()
    _living.clear()
    patch.undo()
    assert traces(pool().folder, folder).since(before) == []


def session():
    """A team in the middle of a session: the one that goes on, where it has not ended in a fault."""
    if _living and _living[0]._ranks.story is not None:
        _living.pop().close()
    if not _living:
        _living.append(start_ranks(3, timeout=60.0))
    (team,) = _living
    team.run_cell(SESSION)
    return team


def interrupt_once_asleep(team):
    while not any("in" in where and "is at" in where for where in team._ranks.where().values()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.sweep("kind", few=[*TEAM_FAULTS][::3], all=TEAM_FAULTS, words=f"every third fault of {len(TEAM_FAULTS)}")
def test_what_each_fault_leaves_can_be_looked_at_and_where_all_ranks_live_the_next_cell_runs(kind):
    fault = TEAM_FAULTS[kind]
    team = session()
    if kind == "interrupt":
        threading.Thread(target=interrupt_once_asleep, args=(team,), daemon=True).start()
    if fault.error is None:
        team.run_cell(fault.cell)
    else:
        with time_limit(team, fault.timeout_s), pytest.raises(fault.error) as caught:
            team.run_cell(fault.cell)
        told = str(caught.value)
        assert fault.says in told and told.count("\n") < 40, told
        if fault.alive:
            assert ("All ranks live" in told) == (fault.alive == ALL), told
    assert tuple(team.alive) == fault.alive
    assert [tensor.tolist() for tensor in team.pull("kept")] == [[11.0 * rank] * 3 for rank in fault.alive]
    if fault.alive == ALL:
        assert team.run_cell(GOES_ON) == dict.fromkeys(ALL, "3.0")
        assert len(team.run_cell("r")) == 3
        return
    with pytest.raises(TeamEnded):
        team.run_cell(GOES_ON)
    for rank in fault.alive:
        assert team[rank].eval("kept.sum().item()") == 33.0 * rank
    team.close()
    _living.clear()


def test_a_call_in_which_all_did_the_same_keeps_the_groups_that_the_reader_made():
    team = session()
    with pytest.raises(Exception) as caught:
        team.run_cell("dist.barrier()\nnot_there")
    assert "made anew" not in str(caught.value)
    assert team.run_cell("x = torch.ones(1)\nif r != 1:\n    dist.all_reduce(x, group=pair)\nx.item()")[2] == "2.0"


def test_a_group_is_made_anew_where_a_rank_was_in_a_call_that_others_never_made_and_that_is_said():
    team = session()
    with pytest.raises(Exception, match="made anew before the next call"):
        team.run_cell("if r:\n    raise ValueError\ndist.barrier()")
    assert team.run_cell(GOES_ON)[0] == "3.0"
