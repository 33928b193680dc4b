"""Ranks are in step where every rank of a group has made the same calls on it, and no message is left."""

import pytest

from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.ranks.crew import Crew
from course_lib.runtime.ranks.diagnosis import deadlock, for_team
from course_lib.runtime.ranks.messages import Absent, Task, Whereabouts

WORLD, PAIR = (0, 1, 2), (0, 2)
TASK = Task(0, 3, "gloo", "store", 0, 1, 60.0, b"")


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
    crew = Crew(None, TASK, {}, stays=True)
    crew.note_counts(counts)
    assert crew.is_in_step() is in_step


def test_a_call_goes_to_the_ranks_that_are_asked_for_in_the_newest_group():
    crew = Crew(None, TASK, {}, stays=True)
    crew.group = 4
    tasks = crew.make_tasks(b"x", [2, 0])
    assert [(task.rank, task.call, task.group) for task in tasks] == [(0, b"x", 4), (2, b"x", 4)]
    assert {task.meeting for task in crew.make_tasks(b"x", group=1)} == {"store-group-1"}
    assert {task.store for task in crew.make_tasks(b"x")} == {"store"}


def test_a_rank_that_takes_no_part_is_named_in_a_deadlock_and_the_words_are_those_of_a_team():
    waits = Whereabouts((), "barrier()", GroupCall(0, "barrier", None, WORLD, []), {("barrier", WORLD): 1}, 0.0, 0.0)
    told = for_team(str(deadlock({0: waits, 1: Absent({}), 2: waits}, 3.0)))
    assert "rank 1  takes no part in this call" in told
    assert "ranks 0 and 2 wait in barrier number 1 of this team, and rank 1 has not called it" in " ".join(told.split())
