"""What went wrong in a launch, once a rank has failed, died or is late: from what ranks report to what is said of it.

Most of it is pure functions of plain data. Last comes the waiting before it: several ranks often end together, and all
but one of them only because the first one did, so the others are heard out.
"""

import queue
import re
import signal
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cloudpickle

from course_lib.runtime.errors import Deadlock, LaunchInterrupted, LaunchTimeout, RankDied, RankFailed
from course_lib.runtime.operations import POINT_TO_POINT
from course_lib.runtime.ranks.counts import are_in_step, compare_calls, list_calls, list_ranks, never_meet, verb
from course_lib.runtime.ranks.crew import LaunchRanks
from course_lib.runtime.ranks.frames import Frame, frames_of_dump, readers_frame, tell_story
from course_lib.runtime.ranks.messages import Absent, Counts, Failed, Quit, Returned, Whereabouts

# rank -> its last answer, or what it came back with
Sightings = Mapping[int, Whereabouts | Returned | Absent]


_ECHO = re.compile(r"connection closed|connection reset|broken pipe|socket closed|connection refused|"
                   r"connection timed out|pair (is )?closed|remote process exited", re.IGNORECASE)
_ECHO_S = 1.0  # how long "connection closed" may be the echo of another rank's end that we have not heard of yet
_TOGETHER_S = 0.1  # failures this close in time are told as one
_LATEST_S = 2.0  # by then a rank that is asked where it is has said it, also on a busy machine

Handler = Callable[[int, Any], None]  # the supervisor's: takes what a rank says, and raises where that ends the launch


def is_echo(failure: Failed) -> bool:
    """Whether the exception only says that some other rank has gone."""
    # When one rank ends, all that talk to it fail a moment later. Their errors would bury the one that matters.
    return failure.in_communication and bool(_ECHO.search(failure.message))


def rank_failure(
    rank: int, failure: Failed, others: Sequence[int], sightings: Sightings, exception: object
) -> RankFailed:
    """An exception in one rank; `others` are further ranks that failed of themselves."""
    line = readers_frame(failure.frames)
    lines = [f"rank {rank} failed{_at(failure.frames)}" + (f" (so did {list_ranks(others)})" if others else "")]
    lines.append(f"  {_words(failure)}")
    lines += [f"    {tensor}" for tensor in failure.tensors]
    stack = list(tell_story(failure.frames))
    if len(stack) > 1 or (line and not line.is_readers):
        lines += ["", f"Traceback of rank {rank}, innermost last:"] + [f"  {line}" for line in stack]
    elif stack:
        lines.insert(1, f"    {line.code()}")
    # Where the others were when a communication call failed: usually in a call that does not match.
    others = [f"  rank {other} was in {seen.waits_in}{_at(seen.frames)}"
              for other, seen in _waiting(sightings).items() if other != rank and seen.waits_in]
    if failure.in_communication and others:
        lines += ["", "Meanwhile:", *others]
    return RankFailed("\n".join(lines), rank, exception)


def _words(failure: Failed) -> str:
    return f"{failure.type_name}: {failure.message}" if failure.message else failure.type_name


def rank_death(
    rank: int, exit_code: int | None, last_words: tuple[Frame, ...], last_seen: Whereabouts | None
) -> RankDied:
    """The process is gone: killed, crashed, or ended by os._exit. `last_words`: where it was when it crashed."""
    how = "ended for an unknown reason"
    if exit_code is not None:
        names = {each.value: f"{each.name} (signal {each.value})" for each in signal.Signals}
        how = (f"ended with exit code {exit_code} before its function returned" if exit_code >= 0
               else f"was killed by {names.get(-exit_code, f'signal {-exit_code}')}")
    message = f"rank {rank} {how}"
    if at := _at_code(last_words or (last_seen.frames if last_seen else ())):
        message += f"\n  {'crashed' if last_words else 'last seen'}{at}"
    if any(frame.is_in_collective for frame in last_words):
        message += ("\n  Hint: the backend aborts a rank when another rank's tensor in the same call has a different "
                    "size: compare shapes and dtypes.")
    # Linux's out-of-memory killer sends SIGKILL and tells the process nothing; most -9 are its.
    if exit_code == -9:
        message += "\n  Hint: unless somebody killed it, the system did because memory ran out."
    return RankDied(message, rank, exit_code)


def reader_quit(rank: int, quit_: Quit) -> LaunchInterrupted:
    """The error for a launch that the reader quit at a breakpoint."""
    return LaunchInterrupted(f"you quit at the breakpoint of rank {rank}{_at(quit_.frames)}; all ranks were stopped")


def deadlock(sightings: Sightings, still_s: float) -> Deadlock:
    """All ranks that have not returned wait in a communication call, and have not moved for `still_s` seconds."""
    lines = [f"no rank can continue (nothing moved for {still_s:g} s)"]
    for rank, seen in sorted(sightings.items()):
        lines += _sighting(rank, seen)
    lines.append(wrap_lines(f"Hint: {_hint(sightings)}"))
    return Deadlock("\n".join(lines), tuple(sorted(_waiting(sightings))), _waits(sightings))


def deadlock_on_gpus(sightings: Sightings, still_s: float) -> Deadlock:
    """The ranks' hosts wait for their GPUs, and those for calls that other ranks have not made."""
    lines = [f"no rank can continue (nothing moved for {still_s:g} s)"]
    for rank, seen in sorted(sightings.items()):
        lines += [*_sighting(rank, seen), f"          has called {list_calls(seen.counts)}"]
    lines.append(wrap_lines(f"Hint: {compare_calls(_counts(sightings))} .item(), .cpu() and synchronize() wait for all "
                            "that the GPU was given, and in a call the GPU waits for every rank of the group."))
    return Deadlock("\n".join(lines), tuple(sorted(_waiting(sightings))), _waits(sightings))


def _sighting(rank: int, seen: Whereabouts | Returned | Absent) -> list[str]:
    """Where one rank is, and below it the call that it waits in."""
    if isinstance(seen, Absent):
        return [f"  rank {rank}  takes no part in this call"]
    if isinstance(seen, Returned):
        return [f"  rank {rank}  has returned normally"]
    line = f"  rank {rank}  {'waits' if seen.waits_in else 'is'}{_at_code(seen.frames)}"
    return [line, f"          -> {seen.waits_in}"] if seen.waits_in else [line]


def wrap_lines(text: str) -> str:
    """The text in lines that fit, indented as all but the first of a message."""
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


def _counts(sightings: Sightings) -> dict[int, Counts]:
    return {rank: seen.counts for rank, seen in sightings.items()}


def _waits(sightings: Sightings) -> dict[int, tuple[str, int]]:
    """rank -> (send or recv, the rank it names)."""
    return {rank: (seen.call.op, seen.call.peer) for rank, seen in _waiting(sightings).items()
            if seen.call and seen.call.peer is not None}


def _waiting(sightings: Sightings) -> dict[int, Whereabouts]:
    return {rank: seen for rank, seen in sorted(sightings.items()) if isinstance(seen, Whereabouts)}


def _hint(sightings: Sightings) -> str:
    waiting = _waiting(sightings)
    kinds = {rank: seen.waits_in.split("(")[0] for rank, seen in waiting.items()}
    return (_hint_on_peers(sightings, waiting, kinds) or _hint_on_collectives(sightings, waiting, kinds)
            or "the ranks wait for one another: compare the order of their calls.")


def _hint_on_peers(sightings: Sightings, waiting: dict[int, Whereabouts], kinds: dict[int, str]) -> str | None:
    peers = {rank: seen.call.peer for rank, seen in waiting.items() if seen.call and seen.call.peer is not None}
    for rank, peer in peers.items():
        if isinstance(sightings.get(peer), Returned):
            return f"rank {rank} waits for rank {peer}, which has already returned."
        if isinstance(sightings.get(peer), Absent):
            return f"rank {rank} waits for rank {peer}, which takes no part in this call."
    if set(kinds.values()) == {"send"}:
        return ("every rank sends and nobody receives, and a send waits for its receiver. Let every second rank "
                "receive first, or start both at once with batch_isend_irecv.")
    if set(kinds.values()) == {"recv"}:
        return "every rank waits to receive and nobody sends."
    for rank, peer in peers.items():
        if peers.get(peer) != rank and peer in waiting:
            return f"rank {rank} waits for rank {peer}, but rank {peer} waits elsewhere: in {waiting[peer].waits_in}."
    return None


def _hint_on_collectives(sightings: Sightings, waiting: dict[int, Whereabouts], kinds: dict[int, str]) -> str | None:
    collective = {rank: kind for rank, kind in kinds.items() if kind not in POINT_TO_POINT}
    if not collective:
        return None
    if len(set(collective.values())) > 1:
        callers = {kind: [rank for rank, k in collective.items() if k == kind] for kind in sorted(set(kinds.values()))}
        said = ", ".join(f"{list_ranks(ranks)} {verb('call', ranks)} {kind}" for kind, ranks in callers.items())
        return f"{said}. All ranks of a group must make the same collective calls in the same order."
    rank, kind = next(iter(collective.items()))
    # The same operation, and still described differently: the description holds shape and dtype.
    if len({waiting[r].waits_in for r in collective}) > 1:
        return f"the ranks call {kind} with different tensors; all must pass the same shape and dtype."
    if waiting[rank].call is None:  # torch's own code waits: new_group, or a backward hook
        return f"{kind} needs every rank to call it."
    key = waiting[rank].call.op, waiting[rank].call.group
    mine = waiting[rank].counts.get(key, 0)
    absent = [r for r in key[1] if r not in collective and sightings[r].counts.get(key, 0) < mine]
    if not absent:
        return None
    theirs = sightings[absent[0]].counts.get(key, 0)
    done = f"called it only {theirs} time{'s' * (theirs != 1)}" if theirs else "not called it"
    returned = " and returned" if all(isinstance(sightings[r], Returned) for r in absent) else ""
    return (f"{list_ranks(collective)} {verb('wait', collective)} in {kind} number {mine} of this launch, and "
            f"{list_ranks(absent)} {verb('have', absent)} {done}{returned}. "
            "Every rank of a group must call it equally often.")


def launch_timeout(sightings: Sightings, silent: Mapping[int, Sequence[Frame]], timeout_s: float) -> LaunchTimeout:
    """Time is up. `silent` ranks did not answer (they hold the interpreter); their frames came by signal."""
    unfinished = sorted(set(_waiting(sightings)) | set(silent))
    lines = [f"{list_ranks(unfinished)} did not finish within {timeout_s:g} s"]
    for rank in sorted(set(sightings) | set(silent)):
        if rank in silent:
            lines.append(f"  rank {rank}  is busy in one uninterruptible call{_at_code(silent[rank])}")
        else:
            lines += _sighting(rank, sightings[rank])
    all_wait = not silent and all(seen.waits_in for seen in _waiting(sightings).values())
    if all_wait:
        lines.append(wrap_lines(f"Hint: all of them wait. {_hint(sightings)}"))
    lines.append("  Hint: if the work simply needs longer, pass launch(..., timeout=seconds).")
    return LaunchTimeout("\n".join(lines), tuple(unfinished), all_wait, _waits(sightings) if all_wait else None)


def interruption(sightings: Sightings, silent: Mapping[int, Sequence[Frame]]) -> str:
    """The reader has had enough. `silent` ranks did not answer, as in `launch_timeout`."""
    frames = {rank: seen.frames for rank, seen in _waiting(sightings).items()} | silent
    lines = ["interrupted; all ranks are stopped"]
    lines += [f"  rank {rank}  {f'was{_at(seen)}' if seen else 'did not say where it was'}"
              for rank, seen in sorted(frames.items())]
    return "\n".join(lines)


def say_for_team(message: str) -> str:
    """The message of a launch, in the words of ranks that stay."""
    for of_launch, of_team in _OF_TEAM.items():
        message = message.replace(of_launch, of_team)
    return message


_OF_TEAM = {"of this launch": "of this team", "pass launch(..., timeout": "pass start_ranks(..., timeout",
            "all ranks are stopped": "the call is stopped", "all ranks were stopped": "the call was stopped"}


def _at(frames: Sequence[Frame]) -> str:
    line = readers_frame(tuple(frames))
    return f" at {line.where()}" if line else ""


def _at_code(frames: Sequence[Frame]) -> str:
    line = readers_frame(tuple(frames))
    return _at(frames) + (f":  {code}" if line and (code := line.code()) else "")


def find_death(ranks: LaunchRanks, rank: int) -> RankDied:
    """The connection of `rank` has closed, or its process has ended."""
    deadline = time.monotonic() + 2.0
    while (code := ranks.crew.exit_code(rank)) is None and time.monotonic() < deadline:
        time.sleep(0.005)  # its connection closes a moment before the process can be reaped
    last_words = frames_of_dump(ranks.tasks[rank].dump)  # written when a library aborts or memory is violated
    return rank_death(rank, code, last_words, ranks.seen.get(rank))


def raise_silent_death(ranks: LaunchRanks) -> None:
    """Of ranks whose connection is held open by a process that they started, so that its end tells nothing."""
    for rank in ranks.unfinished_ranks():
        if ranks.crew.exit_code(rank) is not None and ranks.events.empty():
            raise find_death(ranks, rank)


def find_failure(ranks: LaunchRanks, first: int, failed: Failed, handle: Handler) -> RankFailed:
    """Which of the failures that arrive together is the story, and which are only its echo.

    Raises what `handle` raises where a death, an exit or an interrupt comes in between: then that is the story.
    """
    failures = {first: failed}
    ranks.ask()
    until = time.monotonic() + (_ECHO_S if is_echo(failed) else _TOGETHER_S)
    silent, latest = set(ranks.unfinished_ranks()) - {first}, time.monotonic() + _LATEST_S
    while len(failures) + len(ranks.returned) < len(ranks.tasks) and (
            (now := time.monotonic()) < until or silent and now < latest):  # a rank may wait for a core to say it
        try:
            rank, message = ranks.events.get(timeout=_TOGETHER_S)
        except queue.Empty:
            raise_silent_death(ranks)
            continue
        silent.discard(rank)
        if isinstance(message, Failed):
            failures[rank] = message
            if not is_echo(message):
                until = min(until, time.monotonic() + _TOGETHER_S)
        elif isinstance(message, (Returned, Whereabouts)) or all(map(is_echo, failures.values())):
            handle(rank, message)  # a death, an exit or an interrupt: the failures so far were its echo
    return _first_cause(ranks, failures)


def _first_cause(ranks: LaunchRanks, failures: dict[int, Failed]) -> RankFailed:
    true = {rank: failed for rank, failed in failures.items() if not is_echo(failed)} or failures
    kind = next(iter(true.values())).type_name  # of the first that arrived
    alike = sorted(rank for rank, failed in true.items() if failed.type_name == kind)
    rank = alike[0]
    exception = None
    if true[rank].exception is not None:
        with suppress(Exception):  # an exception class that cannot be rebuilt: its text is in the message anyway
            exception = cloudpickle.loads(true[rank].exception)
    sightings = {r: seen for r, seen in ranks.sightings().items() if r not in failures}
    return rank_failure(rank, true[rank], alike[1:], sightings, exception)


def find_timeout(ranks: LaunchRanks, timeout_s: float, still_s: float, handle: Handler
                 ) -> LaunchTimeout | Deadlock | None:
    """None where the last rank returned while all were asked where they are."""
    silent, unmoved_s = ranks.find_silent(handle), ranks.all_unmoved_for_s()
    if ranks.over_nccl and not silent and unmoved_s >= still_s and not are_in_step(_counts(ranks.sightings())):
        return deadlock_on_gpus(ranks.sightings(), int(unmoved_s))  # perhaps they compute, but nobody waits longer
    return launch_timeout(ranks.sightings(), silent, timeout_s) if ranks.unfinished_ranks() else None


def find_deadlock(ranks: LaunchRanks, still_s: float) -> Deadlock | None:
    """Where all ranks that have not returned hang, as far as can be seen; None where some may go on."""
    if ranks.all_still_for_s() >= still_s:
        return deadlock(ranks.sightings(), still_s)
    # Over NCCL a call returns at once, and a rank hangs where it reads what the GPU has not done, with a CPU that looks
    # all the time whether it has. So there the ranks' calls have to tell.
    if ranks.over_nccl and ranks.all_unmoved_for_s() >= still_s:
        if never_meet(_counts(ranks.sightings()), ranks.unfinished_ranks()):
            return deadlock_on_gpus(ranks.sightings(), still_s)
    return None


def find_interrupt(ranks: LaunchRanks, handle: Handler) -> LaunchInterrupted:
    """The reader has interrupted the cell: where every rank was."""
    silent = ranks.find_silent(handle)
    return LaunchInterrupted(interruption(ranks.sightings(), silent))
