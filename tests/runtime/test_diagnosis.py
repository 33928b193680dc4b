"""From what ranks report to what the reader is told: pure functions, no ranks."""

import pytest
import torch

from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.messages import Failed, Returned, Whereabouts
from course_lib.runtime.ranks.places import Frame

HERE = Frame("train.py", 7, None, "step")
WORLD = (0, 1, 2)


def waits(op, peer=None, group=WORLD, count=1, size=4):
    call = GroupCall(0, op, peer, group, [(torch.float32, (size,))])
    text = f"{op}(float32[{size}])"
    return Whereabouts((HERE,), text, call, {(op, group): count}, 0.0, 0.0)


def a_return(**counts):
    return Returned(b"", {(op, WORLD): count for op, count in counts.items()})


@pytest.mark.parametrize(
    ("sightings", "hint"),
    [
        ({0: waits("recv", peer=1), 1: a_return()}, "rank 0 waits for rank 1, which has already returned."),
        ({0: waits("send", peer=1), 1: waits("send", peer=0)}, "every rank sends and nobody receives"),
        ({0: waits("recv", peer=1), 1: waits("recv", peer=0)}, "every rank waits to receive and nobody sends."),
        ({0: waits("recv", peer=1), 1: waits("barrier")}, "rank 0 waits for rank 1, but rank 1 waits elsewhere: in"),
        ({0: waits("all_reduce"), 1: waits("broadcast"), 2: waits("all_reduce")},
         "ranks 0 and 2 call all_reduce, rank 1 calls broadcast. All ranks of a group must make the same"),
        ({0: waits("all_reduce", size=4), 1: waits("all_reduce", size=5)},
         "the ranks call all_reduce with different tensors"),
        ({0: waits("all_reduce", count=3), 1: waits("all_reduce", count=3), 2: a_return(all_reduce=2)},
         "0 and 1 wait in all_reduce number 3 of this launch, and rank 2 has called it only 2 times and returned"),
        ({0: waits("barrier"), 1: waits("barrier"), 2: a_return()}, "rank 2 has not called it and returned"),
    ],
)
def test_a_hang_is_told_by_its_pattern(sightings, hint):
    error = diagnosis.deadlock(sightings, 3.0)
    assert hint in " ".join(str(error).split())
    assert error.ranks == tuple(r for r, seen in sightings.items() if isinstance(seen, Whereabouts))


def test_a_deadlock_names_every_rank_its_place_and_its_call_and_knows_as_data_who_waits_for_whom(snapshot):
    assert str(diagnosis.deadlock({0: waits("recv", peer=1), 1: a_return()}, 3.0)) == snapshot
    sightings = {0: waits("recv", peer=1), 1: waits("send", peer=2), 2: waits("barrier"), 3: a_return()}
    assert diagnosis.deadlock(sightings, 3.0).waits == {0: ("recv", 1), 1: ("send", 2)}


def test_ranks_that_all_wait_when_time_is_up_are_told_as_those_of_a_deadlock_are():
    sightings = {0: waits("recv", peer=1), 1: waits("recv", peer=0)}
    error = diagnosis.launch_timeout(sightings, {}, 20.0)
    assert error.all_wait and error.waits == {0: ("recv", 1), 1: ("recv", 0)}
    assert "ranks 0 and 1 did not finish within 20 s" in str(error)
    assert "every rank waits to receive and nobody sends" in str(error)


def test_a_rank_at_work_when_time_is_up_may_only_need_longer():
    busy = {0: waits("recv", peer=1), 1: Whereabouts((), None, None, {}, 0.0, 0.0)}
    for error in (diagnosis.launch_timeout(busy, {}, 20.0), diagnosis.launch_timeout({0: busy[0]}, {1: ()}, 20.0)):
        assert not error.all_wait and not error.waits and "all of them wait" not in str(error)


def failure(message, in_communication):
    return Failed("RuntimeError", message, (HERE,), None, in_communication)


@pytest.mark.parametrize("noise", ["Connection closed by peer [::1]:1", "Connection reset by peer", "Broken pipe"])
def test_a_broken_connection_inside_a_collective_is_an_echo(noise):
    assert diagnosis.is_echo(failure(noise, in_communication=True))
    assert not diagnosis.is_echo(failure(noise, in_communication=False))
    assert not diagnosis.is_echo(failure("shape mismatch", in_communication=True))


def test_a_failure_in_a_collective_tells_where_the_others_were():
    error = diagnosis.rank_failure(0, failure("sizes differ", True), [], {1: waits("broadcast"), 2: a_return()}, None)
    assert "Meanwhile:\n  rank 1 was in broadcast(float32[4]) at train.py, line 7" in str(error)


def test_signals_and_exit_codes_are_named():
    assert "was killed by SIGKILL (signal 9)" in str(diagnosis.rank_death(1, -9, (), None))
    assert "memory ran out" in str(diagnosis.rank_death(1, -9, (), None))
    beside = Frame(diagnosis.__file__.replace("runtime/ranks/diagnosis", "groups/exchange"), 7, None, "all_reduce")
    assert "has a different size" in str(diagnosis.rank_death(0, -6, (HERE, beside), None)), "its own thread aborted it"
    assert "has a different size" not in str(diagnosis.rank_death(0, -6, (HERE,), None))
    died = diagnosis.rank_death(2, 7, (), waits("barrier"))
    assert "ended with exit code 7 before its function returned" in str(died)
    assert "last seen at train.py, line 7" in str(died)
    assert (died.rank, died.exit_code) == (2, 7)
