"""What an action needs, who waits for whom, and so: is a schedule legal? If not, why, naming the rank and the action.

    F on stage s   needs the activations of stage s - 1                        leaves the activations of s
    B, I on s      need the activations of s and the gradient of s + 1         leave the gradient of s
    W on s         needs what I left on s                                      leaves nothing that anybody waits for

Sends never block: what a rank has sent lies in a buffer until the receiver takes it by name, in whatever order. So a
schedule gets stuck only where actions wait for each other in a circle, and where a thing never comes.

`buffered=False` asks what would happen if sends did block, each until its receiver comes to take it, as large messages
do where nothing is buffered (a plain send of most libraries, NCCL's on its stream). A rank then receives what an action
needs, runs it, and sends what it made before it does anything else. GPipe survives that; in 1F1B two neighbours meet
that both send first, one forwards and one back. So real pipelines post their sends together with their receives
(batch_isend_irecv), or leave them pending, as PipelineParallel does.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.pipeline_parallel.schedules import KINDS, Action, Schedule, in_flight

MOST_SHOWN = 6  # in the message; `.findings` has all


class Result(NamedTuple):
    """What travels between stages: the "activations" that leave a stage, the "gradient" that leaves it backwards."""

    what: str
    microbatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.what} of micro-batch {self.microbatch} from stage {self.stage}"


def needs(action: Action, stage: int, num_stages: int) -> list[Result]:
    """What has to be there before `action` starts on `stage`, beside the end of its rank's action before."""
    i = action.microbatch
    if action.kind == "F":
        return [Result("activations", i, stage - 1)] if stage else []
    if action.kind == "W":
        return [Result("gradient", i, stage)]
    return [Result("activations", i, stage), *([Result("gradient", i, stage + 1)] if stage + 1 < num_stages else [])]


def leaves(action: Action, stage: int) -> Result | None:
    """The result of `action` on `stage` that other ranks may wait for; None where it makes none."""
    if action.kind == "W":
        return None
    return Result("activations" if action.kind == "F" else "gradient", action.microbatch, stage)


@dataclass(frozen=True)
class Walk:
    """All actions in an order in which they can run, which does not hang on costs.

    done: (rank, action). sources: for each of them, the positions in `done` of what it needs. stuck: for each rank that
    cannot go on, its action and what is missing.
    """

    done: list[tuple[int, Action]]
    sources: list[list[int]]
    stuck: dict[int, tuple[Action, Result]]


def walk(schedule: Schedule) -> Walk:
    """Let every rank go on as long as what it needs is there. Takes schedules with gaps, also those not finished."""
    there: dict[Result, int] = {}
    waiting: dict[Result, list[int]] = {}
    walked = Walk([], [], {})
    position = [0] * schedule.num_ranks
    ready = list(range(schedule.num_ranks))[::-1]
    # In whatever order ranks are asked, the same actions run: one that runs takes nothing from another.
    while ready:
        rank = ready.pop()
        walked.stuck.pop(rank, None)
        for action in schedule.actions[rank][position[rank]:]:
            stage = schedule.stages[rank][action.chunk]
            needed = needs(action, stage, schedule.num_stages)
            missing = next((need for need in needed if need not in there), None)
            if missing:
                walked.stuck[rank] = action, missing
                # The rank is looked at again when this result comes, so no rank is asked twice in vain.
                waiting.setdefault(missing, []).append(rank)
                break
            position[rank] += 1
            result = leaves(action, stage)
            if result:
                there[result] = len(walked.done)
                ready.extend(waiting.pop(result, []))
            walked.done.append((rank, action))
            walked.sources.append([there[need] for need in needed])
    return walked


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: at the action `position` of `rank`, where it can be told."""

    text: str
    rank: int | None = None
    position: int | None = None

    def __str__(self) -> str:
        return self.text


class InvalidSchedule(ValueError):
    """A schedule that cannot be run; `findings` has everything that is wrong with it."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        shown = "".join(f"\n- {finding}" for finding in self.findings[:MOST_SHOWN])
        left = len(self.findings) - MOST_SHOWN
        more = f"\n- and {left} more" if left > 0 else ""
        super().__init__(f"the schedule {name!r} cannot be run:{shown}{more}")


def validate(schedule: Schedule, max_in_flight: int | Sequence[int] | None = None, buffered: bool = True) -> None:
    """Return when the schedule is legal; InvalidSchedule, a ValueError, that lists in words what is wrong otherwise.

    `max_in_flight`: how many activations, of one chunk for one micro-batch each, a rank may hold; one number or one
    for each rank. Sends do not block: a deadlock is a circle of actions that wait for each other.
    `buffered=False`: could it also run where a send returns only once its receiver is there?

    >>> from course_lib.pipeline_parallel.schedules import Action, Schedule
    >>> orders = (Action("F", 0), Action("B", 0)), (Action("B", 0), Action("F", 0))
    >>> validate(Schedule("mine", num_microbatches=1, stages=((0,), (1,)), actions=orders))
    Traceback (most recent call last):
    course_lib.pipeline_parallel.validate.InvalidSchedule: the schedule 'mine' cannot be run:
    - rank 1: B0 stands before F0, but needs its activations
    """
    found = findings(schedule, max_in_flight)
    if not buffered and not found:
        found = list(deadlock_of_sends(schedule))
    if found:
        raise InvalidSchedule(schedule.name, found)


def findings(schedule: Schedule, max_in_flight: int | Sequence[int] | None = None, finished: bool = True
             ) -> list[Finding]:
    """All that is wrong with the schedule. `finished=False` is for one still being written, in which nothing is missing
    yet.

    Each question makes sense only where those before it found nothing; what is shown first comes first.
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"{schedule!r} is no schedule: expected a Schedule, such as gpipe(4, 8)")
    # Later questions look stages up: they need a placement and actions that exist.
    found = list(placement(schedule)) or list(unknown(schedule))
    if found:
        return found
    found = list(repetitions(schedule))
    if not found:
        found = [*out_of_order(schedule, finished), *(absent(schedule) if finished else ())]
    if not found:
        found = list(deadlock(schedule))
    if max_in_flight is not None:
        found += too_many(schedule, max_in_flight)
    return found


def placement(schedule: Schedule) -> Iterator[Finding]:
    """Every stage from 0 on lies on exactly one rank, and every rank has one."""
    if isinstance(schedule.num_microbatches, bool) or not isinstance(schedule.num_microbatches, int) \
            or schedule.num_microbatches < 1:
        yield Finding(f"num_microbatches={schedule.num_microbatches!r}: expected a whole number of 1 or more")
    if len(schedule.stages) != len(schedule.actions):
        yield Finding(f"{len(schedule.stages)} ranks have stages, but {len(schedule.actions)} have actions")
    count = Counter(stage for chunks in schedule.stages for stage in chunks)
    for rank, chunks in enumerate(schedule.stages):
        if not chunks:
            yield Finding(f"rank {rank} holds no stage", rank)
    for stage in sorted(set(range(schedule.num_stages)) | set(count), key=str):
        if stage not in range(schedule.num_stages):
            yield Finding(f"there is no stage {stage!r}: {schedule.num_stages} stages are counted from 0")
        elif count[stage] != 1:
            yield Finding(f"stage {stage} lies on {count[stage] or 'no'} rank{'s' * (count[stage] > 1)}, expected one")
    if not schedule.stages:
        yield Finding("there are no ranks")


def unknown(schedule: Schedule) -> Iterator[Finding]:
    """Actions that are none, of micro-batches or chunks that are not there."""
    for rank, position, action in schedule.positions():
        chunks = schedule.stages[rank]
        if not isinstance(action, Action):
            text = f"{action!r} is no action: expected Action(kind, microbatch, chunk)"
        elif action.kind not in KINDS:
            text = f"{action.kind!r} in {action!r} is no kind of action: expected one of {', '.join(KINDS)}"
        elif action.microbatch not in range(schedule.num_microbatches):
            text = f"{action!r}: there are only micro-batches 0 to {schedule.num_microbatches - 1}"
        elif action.chunk not in range(len(chunks)):
            text = f"{action!r}: the rank has {len(chunks)} chunk{'s' * (len(chunks) > 1)}, counted from 0"
        else:
            continue
        yield Finding(f"rank {rank}: {text}", rank, position)


def repetitions(schedule: Schedule) -> Iterator[Finding]:
    """Actions that stand there twice, and backwards that are both whole and split."""
    seen: dict[tuple[int, Action], int] = {}
    for rank, position, action in schedule.positions():
        if (rank, action) in seen:
            yield Finding(f"rank {rank}: {action} stands there twice", rank, position)
        seen[rank, action] = position
    for rank, action in seen:
        if action.kind != "B":
            continue
        split = [other for other in (action._replace(kind=kind) for kind in "IW") if (rank, other) in seen]
        if split:
            yield Finding(f"rank {rank}: {action} and {' and '.join(map(str, split))}: a backward is either whole (B) "
                          f"or split (I and W)", rank, max(seen[rank, other] for other in (action, *split)))


def out_of_order(schedule: Schedule, finished: bool) -> Iterator[Finding]:
    """Actions in front of what they need from their own rank. What is placed later will stand behind."""
    num_stages = schedule.num_stages
    for rank, actions in enumerate(schedule.actions):
        stages = schedule.stages[rank]
        made = {leaves(action, stages[action.chunk]): (place, action) for place, action in enumerate(actions)}
        for position, action in enumerate(actions):
            for need in needs(action, stages[action.chunk], num_stages):
                if need.stage not in stages or finished and need not in made:  # absent() speaks of the latter
                    continue
                kind = "F" if need.what == "activations" else "I" if action.kind == "W" else "B"
                place, maker = made.get(need, (len(actions), Action(kind, need.microbatch, stages.index(need.stage))))
                if place > position:
                    yield Finding(f"rank {rank}: {action} stands before {maker}, but needs its {need.what}",
                                  rank, position)


def absent(schedule: Schedule) -> Iterator[Finding]:
    """What every rank has to do and one does not."""
    for rank, actions in enumerate(schedule.actions):
        there = set(actions)
        for chunk in range(len(schedule.stages[rank])):
            for i in range(schedule.num_microbatches):
                forward, whole, inputs, weights = (Action(kind, i, chunk) for kind in KINDS)
                if forward not in there:
                    yield Finding(f"rank {rank}: {forward} is missing", rank)
                if not there & {whole, inputs, weights}:
                    yield Finding(f"rank {rank}: {whole} is missing, or {inputs} and {weights}", rank)
                elif whole not in there:
                    for half, other in ((inputs, weights), (weights, inputs)):
                        if half not in there:
                            yield Finding(f"rank {rank}: {half} is missing, {other} is only half of backward", rank)


def deadlock(schedule: Schedule) -> Iterator[Finding]:
    """The first circle of ranks that wait for each other. What is not placed yet will stand behind what is."""
    stuck = walk(schedule).stuck

    def maker(rank: int) -> int | None:
        return schedule.where(stuck[rank][1].stage)[0] if rank in stuck else None

    for rank in stuck:
        if circle := walk_into_circle(rank, maker):
            action, _ = stuck[circle[0]]
            yield Finding(f"deadlock: {'; '.join(waits_for(schedule, rank, *stuck[rank]) for rank in circle)}",
                          circle[0], schedule.actions[circle[0]].index(action))
            return


def walk_into_circle(rank: int | None, waits_for: Callable[[int], int | None]) -> list[int]:
    """From `rank` to whom it waits for, and on: the circle that this ends in, [] where it ends at None."""
    path: list[int] = []
    while rank is not None and rank not in path:
        path.append(rank)
        rank = waits_for(rank)
    return [] if rank is None else path[path.index(rank):]


def waits_for(schedule: Schedule, rank: int, action: Action, need: Result) -> str:
    """What an action of a deadlock waits for, in words."""
    other, chunk = schedule.where(need.stage)
    usual = Action("F" if need.what == "activations" else "B", need.microbatch, chunk)
    maker = next((made for made in schedule.actions[other]
                  if leaves(made, schedule.stages[other][made.chunk]) == need), usual)
    return f"rank {rank} cannot start {action} before rank {other} has done {maker}"


class BlockingCall(NamedTuple):
    """A send or a receive of a rank, and the action it belongs to."""

    op: str
    result: Result
    partner: int
    position: int
    action: Action

    def describe(self, rank: int) -> str:
        """What `rank` is doing in this call, in words."""
        what = f"the {self.result.what} of micro-batch {self.result.microbatch}"
        if self.op == "send":
            return f"rank {rank} has done {self.action} and sends {what} to rank {self.partner}"
        return f"rank {rank} waits at {self.action} for {what} from rank {self.partner}"


def transfers_of(schedule: Schedule, rank: int) -> list[BlockingCall]:
    """The rank's sends and receives, in the order in which it makes them: what an action needs comes before it."""
    calls = []
    for position, action in enumerate(schedule.actions[rank]):
        stage = schedule.stages[rank][action.chunk]
        made = leaves(action, stage)
        taker = stage + (1 if action.kind == "F" else -1)
        ends = [("receive", need, need.stage) for need in needs(action, stage, schedule.num_stages)]
        ends += [("send", made, taker)] if made and 0 <= taker < schedule.num_stages else []
        calls += [BlockingCall(op, result, partner, position, action) for op, result, other in ends
                  if (partner := schedule.where(other)[0]) != rank]
    return calls


def deadlock_of_sends(schedule: Schedule) -> Iterator[Finding]:
    """The circle of ranks, of a legal schedule, in which each waits inside a send or a receive for the next to come."""
    left = [transfers_of(schedule, rank)[::-1] for rank in range(schedule.num_ranks)]
    ready = list(range(schedule.num_ranks))
    while ready:
        rank = ready.pop()
        if not left[rank]:
            continue
        call, other = left[rank][-1], left[rank][-1].partner
        # A message passes only when both of its ends have come to it.
        theirs = left[other][-1] if left[other] else None
        if theirs and theirs.partner == rank and theirs.result == call.result:  # the one sends what the other awaits
            left[rank].pop()
            left[other].pop()
            ready += [other, rank]
    waiting = next((rank for rank, mine in enumerate(left) if mine), None)
    if circle := walk_into_circle(waiting, lambda rank: left[rank][-1].partner):
        text = "; ".join(left[rank][-1].describe(rank) for rank in circle)
        yield Finding(f"deadlock if sends block: {text}", circle[0], left[circle[0]][-1].position)


def too_many(schedule: Schedule, max_in_flight: int | Sequence[int]) -> Iterator[Finding]:
    """The first action of each rank at which it holds more activations than it may."""
    ranks = schedule.num_ranks
    limits = [max_in_flight] * ranks if isinstance(max_in_flight, int) else list(max_in_flight)
    if len(limits) != ranks:
        raise ValueError(f"max_in_flight has {len(limits)} numbers: expected one, or one for each of {ranks} ranks")
    for rank, limit in enumerate(limits):
        held = in_flight(schedule.actions[rank])
        beyond = next((position for position, number in enumerate(held) if number > limit), None)
        if beyond is not None:
            yield Finding(f"rank {rank}: {schedule.actions[rank][beyond]} makes {held[beyond]} activations in flight, "
                          f"{max(held)} at the peak; at most {limit} may be", rank, beyond)
