"""What went wrong in a launch, once a rank has failed, died or is late: hears the other ranks out, then says it.

diagnosis.py finds the words; here is the waiting that comes before. Several ranks often end together, and all but one
of them only because the first one did.
"""

import queue
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from course_lib.runtime.errors import LaunchInterrupted, LaunchTimeout, RankDied, RankFailed
from course_lib.runtime.ranks import diagnosis
from course_lib.runtime.ranks.asking import LaunchRanks
from course_lib.runtime.ranks.messages import Failed, Returned, Whereabouts
from course_lib.runtime.ranks.places import frames_of_dump

_ECHO_S = 1.0  # how long "connection closed" may be the echo of another rank's end that we have not heard of yet
_TOGETHER_S = 0.1  # failures this close in time are told as one

Handler = Callable[[int, Any], None]  # the supervisor's: takes what a rank says, and raises where that ends the launch


def death(ranks: LaunchRanks, rank: int) -> RankDied:
    """The connection of `rank` has closed, or its process has ended."""
    deadline = time.monotonic() + 2.0
    while (code := ranks.exit_code(rank)) is None and time.monotonic() < deadline:
        time.sleep(0.005)  # its connection closes a moment before the process can be reaped
    last_words = frames_of_dump(ranks.tasks[rank].dump)  # written when a library aborts or memory is violated
    return diagnosis.rank_death(rank, code, last_words, ranks.lookout.seen.get(rank))


def raise_silent_death(ranks: LaunchRanks) -> None:
    """Of ranks whose connection is held open by a process that they started, so that its end tells nothing."""
    for rank in ranks.lookout.unfinished_ranks():
        if ranks.exit_code(rank) is not None and ranks.events.empty():
            raise death(ranks, rank)


def failure(ranks: LaunchRanks, first: int, failed: Failed, handle: Handler) -> RankFailed:
    """Which of the failures that arrive together is the story, and which are only its echo.

    Raises what `handle` raises where a death, an exit or an interrupt comes in between: then that is the story.
    """
    failures = {first: failed}
    ranks.ask()
    until = time.monotonic() + (_ECHO_S if diagnosis.is_echo(failed) else _TOGETHER_S)
    while len(failures) + len(ranks.returned) < len(ranks.tasks) and time.monotonic() < until:
        try:
            rank, message = ranks.events.get(timeout=_TOGETHER_S)
        except queue.Empty:
            raise_silent_death(ranks)
            continue
        if isinstance(message, Failed):
            failures[rank] = message
            if not diagnosis.is_echo(message):
                until = min(until, time.monotonic() + _TOGETHER_S)
        elif isinstance(message, (Returned, Whereabouts)) or all(map(diagnosis.is_echo, failures.values())):
            handle(rank, message)  # a death, an exit or an interrupt: the failures so far were its echo
    return _first_cause(ranks, failures)


def _first_cause(ranks: LaunchRanks, failures: dict[int, Failed]) -> RankFailed:
    true = {rank: failed for rank, failed in failures.items() if not diagnosis.is_echo(failed)} or failures
    kind = next(iter(true.values())).type_name  # of the first that arrived
    alike = sorted(rank for rank, failed in true.items() if failed.type_name == kind)
    rank = alike[0]
    exception = None
    if true[rank].exception is not None:
        try:
            exception = cloudpickle.loads(true[rank].exception)
        except Exception:  # an exception class that cannot be rebuilt: its text is in the message anyway
            exception = None
    sightings = {r: seen for r, seen in ranks.lookout.sightings().items() if r not in failures}
    return diagnosis.rank_failure(rank, true[rank], alike[1:], sightings, exception)


def timeout(ranks: LaunchRanks, timeout_s: float, handle: Handler) -> LaunchTimeout | None:
    """None where the last rank returned while all were asked where they are."""
    silent = ranks.silent_frames(handle)
    if ranks.all_returned:
        return None
    return diagnosis.launch_timeout(ranks.lookout.sightings(), silent, timeout_s)


def interrupt(ranks: LaunchRanks, handle: Handler) -> LaunchInterrupted:
    """The reader has interrupted the cell: where every rank was."""
    silent = ranks.silent_frames(handle)
    return LaunchInterrupted(diagnosis.interruption(ranks.lookout.sightings(), silent))
