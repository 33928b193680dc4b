"""Is a schedule legal? And if not, why: in words that name the rank and the action."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from course_lib.pipeline_parallel.dependencies import Result, find_circle, leaves, needs, walk
from course_lib.pipeline_parallel.schedules import KINDS, Action, Schedule
from course_lib.pipeline_parallel.timing import in_flight

MOST_SHOWN = 6  # in the message; `.findings` has all


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
    for each rank. Sends do not block (see `dependencies`): a deadlock is a circle of actions that wait for each other.
    `buffered=False`: could it also run where a send returns only once its receiver is there (see `blocking`)?

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
    for rank in stuck:
        path: list[int] = []
        # What a stuck rank waits for is made by another stuck rank, so the walk ends in a circle.
        while rank in stuck and rank not in path:
            path.append(rank)
            rank = schedule.where(stuck[rank][1].stage)[0]
        if rank in path:
            circle = path[path.index(rank):]
            action, _ = stuck[circle[0]]
            yield Finding(f"deadlock: {'; '.join(waits_for(schedule, rank, *stuck[rank]) for rank in circle)}",
                          circle[0], schedule.actions[circle[0]].index(action))
            return


def waits_for(schedule: Schedule, rank: int, action: Action, need: Result) -> str:
    """What an action of a deadlock waits for, in words."""
    other, chunk = schedule.where(need.stage)
    usual = Action("F" if need.what == "activations" else "B", need.microbatch, chunk)
    maker = next((made for made in schedule.actions[other]
                  if leaves(made, schedule.stages[other][made.chunk]) == need), usual)
    return f"rank {rank} cannot start {action} before rank {other} has done {maker}"


def deadlock_of_sends(schedule: Schedule) -> Iterator[Finding]:
    """The circle of ranks in which each waits inside a send or a receive for the next one to come."""
    circle = find_circle(schedule)
    if circle:
        rank, call = circle[0]
        text = "; ".join(call.describe(rank) for rank, call in circle)
        yield Finding(f"deadlock if sends block: {text}", rank, call.position)


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
