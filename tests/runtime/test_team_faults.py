"""Whatever goes wrong in ranks that stay, what can be kept is, the next cell runs, and at the end nothing is left.

The faults are those of tests/faults/kinds.py, one after another in one team for as long as its ranks live.
"""

import sys

import pytest

from course_lib.runtime import LaunchError, LaunchTimeout, TeamEnded, start_ranks
from course_lib.runtime.errors import LaunchInterrupted
from course_lib.runtime.ranks.pools import pool
from tests.faults import inside
from tests.faults.kinds import (
    ALL,
    FAULTS,
    FEW_IN_TEAM,
    IN_TEAM,
    SESSION,
    SHORT_S,
    Plan,
    complaints_about,
    interrupt_once,
)
from tests.faults.traces import traces

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

GOES_ON = "x = torch.tensor([float(r)])\ndist.all_reduce(x)\nx.item()"
_living: list = []  # the team of the session that goes on


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(tmp_path_factory):
    folder = tmp_path_factory.mktemp("session")
    with pytest.MonkeyPatch.context() as patch, inside.limits(still_s=1.0):  # no cell stands still so long by chance
        patch.setenv("TMPDIR", str(folder))
        patch.chdir(folder)
        pool().wait_for_preload()
        before = traces(pool().folder, folder)
        yield
        for team in _living:
            team.close()
        _living.clear()
    assert traces(pool().folder, folder).since(before) == []


def session():
    """A team in the middle of a session: the one that goes on, where it has not ended in a fault."""
    if _living and inside.is_over(_living[0]):
        _living.pop().close()
    if not _living:
        _living.append(start_ranks(3, timeout=60.0))
    (team,) = _living
    team.run_cell(SESSION.format(plan=Plan(num_lines=5000)))
    return team


@pytest.mark.sweep("kind", few=FEW_IN_TEAM, all=IN_TEAM, words=f"those of {len(IN_TEAM)} faults that no launch has")
def test_what_each_fault_leaves_can_be_looked_at_and_where_all_ranks_live_the_next_cell_runs(kind):
    fault, team, error = FAULTS[kind], session(), None
    if kind == "interrupt":
        interrupt_once(lambda: any("is at" in where for where in inside.rank_lines(team).values()))
    with inside.call_limit(team, SHORT_S if fault.error is LaunchTimeout else 60.0):
        try:
            team.run_cell(fault.cell(culprit=1))
        except (LaunchError, LaunchInterrupted) as caught:
            error = caught
    assert complaints_about(fault, 1, error) == []
    if error is not None and fault.alive:
        assert ("All ranks live" in str(error)) == (fault.alive == ALL), error
    assert tuple(team.alive) == fault.alive
    assert [tensor.tolist() for tensor in team.pull("kept")] == [[11.0 * rank] * 3 for rank in fault.alive]
    if fault.alive == ALL:
        assert team.run_cell(GOES_ON) == dict.fromkeys(ALL, "3.0") and len(team.run_cell("r")) == 3
        return
    with pytest.raises(TeamEnded):
        team.run_cell(GOES_ON)
    for rank in fault.alive:
        assert team[rank].eval("kept.sum().item()") == 33.0 * rank


def test_groups_are_made_anew_only_where_a_rank_was_in_a_call_that_others_never_made_and_that_is_said():
    team = session()
    with pytest.raises(LaunchError) as caught:
        team.run_cell("dist.barrier()\nnot_there")
    assert "made anew" not in str(caught.value)
    assert team.run_cell("x = torch.ones(1)\nif r != 1:\n    dist.all_reduce(x, group=others)\nx.item()")[2] == "2.0"
    with pytest.raises(LaunchError, match="made anew before the next call"):
        team.run_cell("if r:\n    raise ValueError\ndist.barrier()")
    assert team.run_cell(GOES_ON)[0] == "3.0"
