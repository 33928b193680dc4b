"""When ranks count as stuck: only what was seen counts, whatever the clock says."""

import pytest

from course_lib.runtime.ranks.lookout import Lookout
from course_lib.runtime.ranks.messages import Returned, Whereabouts

LINE = "rank 1 waits here"


def lookout_after(*sightings: tuple, ranks: int = 2, returned: tuple[int, ...] = ()) -> Lookout:
    """After (rank, the rank's clock, the line on which it waits or None where it computes, CPU seconds so far)."""
    lookout = Lookout(list(range(ranks)), [], {rank: Returned(b"", {}) for rank in returned})
    for rank, clock_s, line, busy_s in sightings:
        lookout.note(rank, Whereabouts((), line, None, {(str(line), ()): 1}, busy_s, clock_s))
    return lookout


def every(rank: int, begin_s: float, end_s: float, step_s: float = 0.25, line: str | None = LINE) -> list[tuple]:
    return [(rank, begin_s + step_s * i, line, 0.0) for i in range(round((end_s - begin_s) / step_s) + 1)]


def test_ranks_that_are_seen_to_wait_for_seconds_are_stuck_for_as_long_as_all_of_them_were():
    assert lookout_after(*every(0, 0, 4), *every(1, 1, 4)).all_still_for_s() == 3.0


def test_a_machine_that_stands_still_for_a_minute_is_no_deadlock():
    paused = [(rank, clock_s, LINE, 0.0) for clock_s in (0.0, 0.25, 60.0, 60.25) for rank in (0, 1)]
    lookout = lookout_after(*paused)
    assert lookout.still_for_s(0) == 60.25 and lookout.all_still_for_s() == 0.0


def test_a_rank_that_has_not_answered_since_the_other_began_to_wait_may_compute_by_now():
    assert lookout_after(*every(0, 0, 4), *every(1, 5, 9)).all_still_for_s() <= 0.0


@pytest.mark.parametrize("moved", [(0, 3.0, "elsewhere", 0.0), (0, 3.0, None, 0.0), (0, 3.0, LINE, 2.0)])
def test_a_rank_that_moved_computed_or_used_the_cpu_begins_anew(moved):
    lookout = lookout_after(*every(0, 0, 2.75), *every(1, 0, 6), moved, *every(0, 3.25, 5))
    assert 0.0 <= lookout.all_still_for_s() <= 2.0


def test_those_that_returned_are_not_waited_for_and_nobody_left_is_not_stuck():
    assert lookout_after(*every(0, 0, 4), returned=(1,)).all_still_for_s() == 4.0
    assert lookout_after(returned=(0, 1)).all_still_for_s() == 0.0
