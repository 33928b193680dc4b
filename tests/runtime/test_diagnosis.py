"""From what ranks report to what the reader is told, and to whether they are in step or stuck: no ranks, no clock."""

import pytest
import torch

from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.counts import never_meet
from course_lib.runtime.ranks.crew import Crew, LaunchRanks
from course_lib.runtime.ranks.frames import Frame
from course_lib.runtime.ranks.messages import Absent, Failed, Returned, Task, Whereabouts

HERE = Frame("train.py", 7, "step")
WORLD, PAIR = (0, 1, 2), (0, 2)


def waits(op, peer=None, group=WORLD, count=1, size=4):
    call = GroupCall(0, op, peer, group, [(torch.float32, (size,))])
    return Whereabouts((HERE,), f"{op}(float32[{size}])", call, {(op, group): count}, 0.0, 0.0)


def a_return(**counts):
    return Returned(b"", {(op, WORLD): count for op, count in counts.items()})


HANGS = [
    {0: waits("recv", peer=1), 1: a_return()},
    {0: waits("send", peer=1), 1: waits("send", peer=0)},
    {0: waits("recv", peer=1), 1: waits("recv", peer=0)},
    {0: waits("recv", peer=1), 1: waits("barrier")},
    {0: waits("all_reduce"), 1: waits("broadcast"), 2: waits("all_reduce")},
    {0: waits("all_reduce", size=4), 1: waits("all_reduce", size=5)},
    {0: waits("all_reduce", count=3), 1: waits("all_reduce", count=3), 2: a_return(all_reduce=2)},
    {0: waits("barrier"), 1: waits("barrier"), 2: a_return()},
]


def test_a_hang_is_told_by_its_pattern_with_every_rank_its_place_and_its_call(snapshot):
    errors = [diagnosis.deadlock(sightings, 3.0) for sightings in HANGS]
    assert [error.ranks for error in errors] == [(0,), *[(0, 1)] * 3, (0, 1, 2), *[(0, 1)] * 3]
    assert "\n".join(map(str, errors)) == snapshot


A, B = ("all_reduce", WORLD), ("broadcast", WORLD)


@pytest.mark.parametrize(("counts", "unfinished", "ever"), [
    ({0: {A: 3}, 1: {A: 3}, 2: {A: 2}}, (0, 1), False), ({0: {A: 3}, 1: {A: 3}, 2: {A: 2}}, (0, 1, 2), True),
    ({0: {A: 1, B: 1}, 1: {A: 1, B: 1}, 2: {A: 2}}, (0, 1, 2), False),
    ({0: {A: 1, B: 2}, 1: {A: 1, B: 2}, 2: {A: 1, B: 1}}, (0, 1, 2), True),
    ({0: {("broadcast", PAIR): 1}, 1: {A: 1}, 2: {("broadcast", PAIR): 1}}, (0, 1, 2), True),
    ({0: {("recv", PAIR): 1}, 1: {}, 2: {}}, (0,), False), ({0: {("recv", PAIR): 1}, 1: {}, 2: {}}, (0, 2), True),
    ({0: {("send", PAIR): 1}, 1: {}, 2: {}}, (2,), True),
], ids=["returned before", "only behind", "other ways", "behind in one", "other groups", "nobody sends any more",
        "who sends may come", "who receives may come"])
def test_ranks_never_meet_where_one_that_has_returned_or_gone_another_way_lacks_a_call(counts, unfinished, ever):
    assert never_meet(counts, unfinished) == (not ever)


def test_a_deadlock_knows_as_data_who_waits_for_whom_and_tells_a_team_who_took_no_part():
    sightings = {0: waits("recv", peer=1), 1: waits("send", peer=2), 2: waits("barrier"), 3: a_return()}
    assert diagnosis.deadlock(sightings, 3.0).waits == {0: ("recv", 1), 1: ("send", 2)}
    sightings = {0: waits("barrier", count=1), 1: Absent({}), 2: waits("barrier")}
    told = diagnosis.say_for_team(str(diagnosis.deadlock(sightings, 3.0)))
    assert "rank 1  takes no part in this call" in told
    assert "ranks 0 and 2 wait in barrier number 1 of this team, and rank 1 has not called it" in " ".join(told.split())


def test_ranks_that_all_wait_when_time_is_up_are_a_deadlock_and_one_at_work_may_only_need_longer():
    receives = {0: waits("recv", peer=1), 1: waits("recv", peer=0)}
    error = diagnosis.launch_timeout(receives, {}, 20.0)
    assert error.all_wait and error.waits == {0: ("recv", 1), 1: ("recv", 0)}
    assert "ranks 0 and 1 did not finish within 20 s" in str(error)
    assert "every rank waits to receive and nobody sends" in str(error)
    busy = Whereabouts((), None, None, {}, 0.0, 0.0)
    for seen, silent in (({**receives, 1: busy}, {}), ({0: receives[0]}, {1: ()})):
        error = diagnosis.launch_timeout(seen, silent, 20.0)
        assert not error.all_wait and not error.waits and "all of them wait" not in str(error)


def failure(message, in_communication=True):
    return Failed("RuntimeError", message, (HERE,), None, in_communication)


def test_a_broken_connection_inside_a_collective_is_an_echo_and_a_failure_there_tells_where_the_others_were():
    for noise in ("Connection closed by peer [::1]:1", "Connection reset by peer", "Broken pipe"):
        assert diagnosis.is_echo(failure(noise)) and not diagnosis.is_echo(failure(noise, in_communication=False))
    assert not diagnosis.is_echo(failure("shape mismatch"))
    error = diagnosis.rank_failure(0, failure("sizes differ"), [], {1: waits("broadcast"), 2: a_return()}, None)
    assert "Meanwhile:\n  rank 1 was in broadcast(float32[4]) at train.py, line 7" in str(error)


def test_a_death_tells_its_likely_cause_and_where_the_rank_was_last_seen():
    assert "memory ran out" in str(diagnosis.rank_death(1, -9, (), None))
    beside = Frame(diagnosis.__file__.replace("runtime/ranks/diagnosis", "groups/exchange"), 7, "all_reduce")
    assert "has a different size" in str(diagnosis.rank_death(0, -6, (HERE, beside), None)), "its own thread aborted it"
    assert "has a different size" not in str(diagnosis.rank_death(0, -6, (HERE,), None))
    died = diagnosis.rank_death(2, 7, (), waits("barrier"))
    assert "last seen at train.py, line 7" in str(died) and (died.rank, died.exit_code) == (2, 7)


# In step: every rank of a group has made the same calls on it, and no message is left

@pytest.mark.parametrize("counts, in_step", [
    ({}, True),
    ({rank: {("all_reduce", WORLD): 2} for rank in WORLD}, True),
    ({0: {("all_reduce", WORLD): 2}, 1: {("all_reduce", WORLD): 1}, 2: {("all_reduce", WORLD): 2}}, False),
    ({0: {("all_reduce", WORLD): 1}}, False),
    ({0: {("barrier", PAIR): 1}, 2: {("barrier", PAIR): 1}}, True),
    ({0: {("barrier", PAIR): 1}, 1: {}}, False),
    ({0: {("send", WORLD): 1}, 1: {("recv", WORLD): 1}}, True),
    ({0: {("send", WORLD): 1}, 1: {("recv", WORLD): 2}}, False),
    ({0: {("send", WORLD): 1}, 2: {("recv", PAIR): 1}}, False),
])
def test_ranks_are_in_step_where_all_of_a_group_made_the_same_calls_and_each_message_was_received(counts, in_step):
    crew = Crew(None, Task(0, 3, "gloo", "store", 0, 1, 60.0, b""), {}, stays=True)
    crew.counts |= counts
    assert crew.is_in_step() is in_step


# Stuck: only what was seen counts, whatever the clock says

LINE = "rank 1 waits here"


def seen_after(*sightings, ranks=2, returned=None):
    """After (rank, the rank's clock, the line on which it waits or None where it computes, CPU seconds so far), and
    after the returns, {rank: clock}.
    """
    crew = Crew(None, Task(0, ranks, "gloo", "store", 0, 1, 60.0, b""), {})
    seen = LaunchRanks(crew, crew.make_tasks(b""))
    for rank, clock_s in (returned or {}).items():
        seen.note_return(rank, Returned(b"", {}), clock_s)
    for rank, clock_s, line, busy_s in sightings:
        seen.note(rank, Whereabouts((), line, None, {(str(line), ()): 1}, busy_s, clock_s))
    return seen


def every(rank, begin_s, end_s):
    """Seen to wait four times a second."""
    return [(rank, begin_s + i / 4, LINE, 0.0) for i in range(round((end_s - begin_s) * 4) + 1)]


def test_ranks_are_stuck_for_as_long_as_all_that_are_left_were_seen_to_wait():
    assert seen_after(*every(0, 0, 4), *every(1, 1, 4)).all_still_for_s() == 3.0
    assert seen_after(*every(0, 0, 4), *every(1, 5, 9)).all_still_for_s() <= 0.0  # rank 0 may compute by now
    assert seen_after(*every(0, 0, 4), returned={1: -1.0}).all_still_for_s() == 4.0
    assert seen_after(*every(0, 0, 4), returned={1: 3.5}).all_still_for_s() == 0.5  # what rank 1 sent may be on its way
    assert seen_after(returned={0: 1.0, 1: 1.0}).all_still_for_s() == 0.0


def test_a_machine_that_stands_still_for_a_minute_is_no_deadlock():
    paused = [(rank, clock_s, LINE, 0.0) for clock_s in (0.0, 0.25, 60.0, 60.25) for rank in (0, 1)]
    seen = seen_after(*paused)
    assert seen.still_for_s(0) == 60.25 and seen.all_still_for_s() == 0.0


@pytest.mark.parametrize("moved", [(0, 3.0, "elsewhere", 0.0), (0, 3.0, None, 0.0), (0, 3.0, LINE, 2.0)])
def test_a_rank_that_moved_computed_or_used_the_cpu_begins_anew(moved):
    seen = seen_after(*every(0, 0, 2.75), *every(1, 0, 6), moved, *every(0, 3.25, 5))
    assert 0.0 <= seen.all_still_for_s() <= 2.0
