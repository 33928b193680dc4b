"""Error messages of launch: from what the ranks report to what the reader should know. Pure functions of plain data.

Shapes, dtypes and devices of the tensors that the failing line of a traceback names, as text.

Most bugs of distributed code are one of the three.
"""

import dis
import re
import signal
import textwrap
import traceback as tracebacks
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime.errors import Deadlock, LaunchInterrupted, LaunchTimeout, RankDied, RankFailed
from course_lib.runtime.ranks.messages import Absent, Exited, Failed, Quit, Returned, Whereabouts
from course_lib.runtime.ranks.places import Frame, frames_of_traceback, readers_frame, story

MAX_TENSORS = 8
MAX_IN_A_LIST = 4
MAX_VALUES = 6  # a tensor with no more numbers is shown whole
_NAMES = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF"}


def tensors_in_line(traceback: TracebackType | None) -> tuple[str, ...]:
    """`x: float32[3] on cpu = [1.0, 2.0, 3.0]` for each tensor that the reader's failing line names, in its order.

    Also tensors that are attributes there (layer.weight), and lists and tuples of tensors.
    """
    place = _readers_innermost(traceback)
    if place is None:
        return ()
    frame, line = place
    found: dict[str, str] = {}
    for name, value in _named_in(frame, line):
        if name not in found and (text := _text_of(value)):
            found[name] = f"{name}: {text}"
    return tuple(found.values())[:MAX_TENSORS]


def _readers_innermost(traceback: TracebackType | None) -> tuple[FrameType, int] | None:
    plain = frames_of_traceback(traceback, skip="")
    walked = list(tracebacks.walk_tb(traceback))
    return next((place for place, frame in zip(reversed(walked), reversed(plain)) if frame.is_readers), None)


def _named_in(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """(name, value) of what the instructions of that line load: variables, and attributes of variables."""
    # In the order in which Python itself looks: a local name hides a global one.
    scope = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}
    current: tuple[str, Any] | None = None  # what the next attribute would be one of
    for instruction in dis.get_instructions(frame.f_code):
        if not instruction.positions or instruction.positions.lineno != line or instruction.opname == "CACHE":
            continue
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname in _NAMES or instruction.opname.startswith("LOAD_FAST"):
            for name in names:  # newer Pythons load two variables at once
                current = (name, scope[name]) if name in scope else None
                if current:
                    yield current
        elif instruction.opname == "LOAD_ATTR" and current:
            current = _attribute(*current, instruction.argval)
            if current:
                yield current
        else:
            current = None


def _attribute(owner: str, value: Any, name: str) -> tuple[str, Any] | None:
    """Read without running any of the reader's code: what lies in the object, or is a part of a module."""
    places = [getattr(value, "__dict__", {})]
    if isinstance(value, nn.Module):
        places += [value.__dict__.get(kind, {}) for kind in ("_parameters", "_buffers", "_modules")]
    if isinstance(value, Tensor) and name in ("grad", "data"):
        return f"{owner}.{name}", value.grad if name == "grad" else value
    return next(((f"{owner}.{name}", place[name]) for place in places if name in place), None)


def _text_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return _description_of(value) + _values_of(value)
    if type(value) in (list, tuple) and value and all(isinstance(item, Tensor) for item in value):
        shown = ", ".join(_description_of(item) for item in value[:MAX_IN_A_LIST])
        return f"{type(value).__name__} of {len(value)}: {shown}{', ...' * (len(value) > MAX_IN_A_LIST)}"
    return ""


def _description_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _values_of(tensor: Tensor) -> str:
    """Only of the host's memory: to read from a GPU, whose last call may never end, is to wait for it."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not plain or not 0 < tensor.numel() <= MAX_VALUES:
        return ""
    if not tensor.untyped_storage().nbytes():  # emptied, as FSDP does: there is nothing to read
        return " without memory"
    values = tensor.detach()
    if values.is_floating_point():
        values = values.double().round(decimals=4)
    return f" = {values.tolist()}"


# rank -> its last answer, or what it came back with
Sightings = Mapping[int, Whereabouts | Returned | Absent]


_ECHO = re.compile(r"connection closed|connection reset|broken pipe|socket closed|connection refused|"
                   r"connection timed out|pair (is )?closed|remote process exited", re.IGNORECASE)


def is_echo(failure: Failed) -> bool:
    """Whether the exception only says that some other rank has gone."""
    if failure.members:
        return all(map(is_echo, failure.members))
    # When one rank ends, all that talk to it fail a moment later. Their errors would bury the one that matters.
    return failure.in_communication and bool(_ECHO.search(failure.message))


def rank_failure(
    rank: int, failure: Failed, others: Sequence[int], sightings: Sightings, exception: object
) -> RankFailed:
    """An exception in one rank; `others` are further ranks that failed of themselves."""
    place = readers_frame(failure.frames)
    lines = [f"rank {rank} failed" + (f" at {place.where()}" if place else "")]
    if others:
        lines[0] += f" (so did {_ranks(others)})"
    lines.append(f"  {_words(failure)}")
    lines += [f"    {tensor}" for tensor in failure.tensors]
    lines += _members(failure)
    stack = list(story(failure.frames))
    if len(stack) > 1 or (place and not place.is_readers):
        lines += ["", f"Traceback of rank {rank}, innermost last:"] + [f"  {line}" for line in stack]
    elif stack:
        lines.insert(1, f"    {place.code()}")
    if failure.in_communication:
        lines += _elsewhere(sightings, without=rank)
    return RankFailed("\n".join(lines), rank, exception)


def _words(failure: Failed) -> str:
    return f"{failure.type_name}: {failure.message}" if failure.message else failure.type_name


def _members(group: Failed, indent: str = "    ") -> list[str]:
    """What an exception group holds: of each member its class, its words and its place."""
    lines = []
    for number, member in enumerate(group.members, start=1):
        place = readers_frame(member.frames)
        words = _words(member).splitlines() + ([f"at {place.where()}:  {place.code()}"] if place else [])
        lines += [f"{indent}{'   ' if line else f'{number}. '}{text}" for line, text in enumerate(words)]
        lines += _members(member, indent + "   ")
    return lines


def _elsewhere(sightings: Sightings, without: int) -> list[str]:
    """Where the others were when a communication call failed: usually in a call that does not match."""
    others = [f"  rank {rank} was in {seen.waits_in}{_at(seen.frames)}"
              for rank, seen in _waiting(sightings).items() if rank != without and seen.waits_in]
    return ["", "Meanwhile:", *others] if others else []


def rank_death(
    rank: int, exit_code: int | None, last_words: tuple[Frame, ...], last_seen: Whereabouts | None
) -> RankDied:
    """The process is gone: killed, crashed, or ended by os._exit. `last_words`: where it was when it crashed."""
    if exit_code is None:
        how = "ended for an unknown reason"
    elif exit_code < 0:
        how = f"was killed by {_signal_name(-exit_code)}"
    else:
        how = f"ended with exit code {exit_code} before its function returned"
    message = f"rank {rank} {how}"
    place = readers_frame(last_words or (last_seen.frames if last_seen else ()))
    if place:
        message += f"\n  {'crashed' if last_words else 'last seen'} at {place.where()}:  {place.code()}"
    if any(frame.is_in_collective for frame in last_words):
        message += ("\n  Hint: the backend aborts a rank when another rank's tensor in the same call has a different "
                    "size: compare shapes and dtypes.")
    # Linux's out-of-memory killer sends SIGKILL and tells the process nothing; most -9 are its.
    if exit_code == -9:
        message += "\n  Hint: unless somebody killed it, the system did because memory ran out."
    return RankDied(message, rank, exit_code)


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def rank_exit(rank: int, exited: Exited) -> RankDied:
    """The error for a rank that called sys.exit: where, with what."""
    place = readers_frame(exited.frames)
    code = exited.code if isinstance(exited.code, int) else (0 if exited.code is None else 1)
    where = f" at {place.where()}:  {place.code()}" if place else ""
    said = f"\n  {exited.code}" if isinstance(exited.code, str) else ""
    message = (f"rank {rank} called sys.exit (exit code {code}){where}{said}\n"
               "  Hint: return from the function instead; every rank has to return a result.")
    return RankDied(message, rank, code)


def reader_quit(rank: int, quit_: Quit) -> LaunchInterrupted:
    """The error for a launch that the reader quit at a breakpoint."""
    place = readers_frame(quit_.frames)
    where = f" at {place.where()}" if place else ""
    return LaunchInterrupted(f"you quit at the breakpoint of rank {rank}{where}; all ranks were stopped")


def deadlock(sightings: Sightings, still_s: float) -> Deadlock:
    """All ranks that have not returned wait in a communication call, and have not moved for `still_s` seconds."""
    lines = [f"no rank can continue (nothing moved for {still_s:g} s)"]
    for rank, seen in sorted(sightings.items()):
        lines += _sighting(rank, seen)
    lines.append(_hint_lines(_hint(sightings)))
    return Deadlock("\n".join(lines), tuple(sorted(_waiting(sightings))), _waits(sightings))


def _sighting(rank: int, seen: Whereabouts | Returned | Absent) -> list[str]:
    """Where one rank is, and below it the call that it waits in."""
    if isinstance(seen, Absent):
        return [f"  rank {rank}  takes no part in this call"]
    if isinstance(seen, Returned):
        return [f"  rank {rank}  has returned normally"]
    place = readers_frame(seen.frames)
    code = f":  {place.code()}" if place and place.code() else ""
    line = f"  rank {rank}  {'waits' if seen.waits_in else 'is'}{_at(seen.frames)}{code}"
    return [line, f"          -> {seen.waits_in}"] if seen.waits_in else [line]


def _hint_lines(hint: str) -> str:
    return wrap_lines(f"Hint: {hint}")


def wrap_lines(text: str) -> str:
    """The text in lines that fit, indented as all but the first of a message."""
    return textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


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
    collective = {rank: kind for rank, kind in kinds.items() if kind not in ("send", "recv")}
    if not collective:
        return None
    if len(set(collective.values())) > 1:
        callers = {kind: [rank for rank, k in collective.items() if k == kind] for kind in sorted(set(kinds.values()))}
        said = ", ".join(f"{_ranks(ranks)} {_verb('call', ranks)} {kind}" for kind, ranks in callers.items())
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
    return (f"{_ranks(collective)} {_verb('wait', collective)} in {kind} number {mine} of this launch, and "
            f"{_ranks(absent)} {_verb('has', absent)} {done}{returned}. "
            "Every rank of a group must call it equally often.")


def _verb(stem: str, ranks: Sequence[int] | Mapping[int, object]) -> str:
    if stem == "has":
        return "has" if len(ranks) == 1 else "have"
    return stem + "s" * (len(ranks) == 1)


def launch_timeout(sightings: Sightings, silent: Mapping[int, Sequence[Frame]], timeout_s: float) -> LaunchTimeout:
    """Time is up. `silent` ranks did not answer (they hold the interpreter); their frames came by signal."""
    unfinished = sorted(set(_waiting(sightings)) | set(silent))
    lines = [f"{_ranks(unfinished)} did not finish within {timeout_s:g} s"]
    for rank in sorted(set(sightings) | set(silent)):
        if rank in silent:
            place = readers_frame(tuple(silent[rank]))
            at = f" at {place.where()}:  {place.code()}" if place else ""
            lines.append(f"  rank {rank}  is busy in one uninterruptible call{at}")
        else:
            lines += _sighting(rank, sightings[rank])
    all_wait = not silent and all(seen.waits_in for seen in _waiting(sightings).values())
    if all_wait:
        lines.append(_hint_lines(f"all of them wait. {_hint(sightings)}"))
    lines.append("  Hint: if the work simply needs longer, pass launch(..., timeout=seconds).")
    return LaunchTimeout("\n".join(lines), tuple(unfinished), all_wait, _waits(sightings) if all_wait else None)


def interruption(sightings: Sightings, silent: Mapping[int, Sequence[Frame]]) -> str:
    """The reader has had enough. `silent` ranks did not answer, as in `launch_timeout`."""
    frames = {rank: seen.frames for rank, seen in _waiting(sightings).items()} | silent
    lines = ["interrupted; all ranks are stopped"]
    lines += [f"  rank {rank}  {f'was{_at(seen)}' if seen else 'did not say where it was'}"
              for rank, seen in sorted(frames.items())]
    return "\n".join(lines)


def for_team(message: str) -> str:
    """The message of a launch, in the words of ranks that stay."""
    for of_launch, of_team in _OF_TEAM.items():
        message = message.replace(of_launch, of_team)
    return message


_OF_TEAM = {"of this launch": "of this team", "pass launch(..., timeout": "pass start_ranks(..., timeout",
            "all ranks are stopped": "the call is stopped", "all ranks were stopped": "the call was stopped"}


def _at(frames: Sequence[Frame]) -> str:
    place = readers_frame(tuple(frames))
    return f" at {place.where()}" if place else ""


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"
