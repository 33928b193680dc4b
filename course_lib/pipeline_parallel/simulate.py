"""When every action of a schedule runs, given what it costs: idle time, memory, and the path that decides.

A rank does its actions in their order, each as soon as what it needs has arrived. Whole numbers and Fractions go in and
come out exactly, so that a simulated idle share can be compared with a closed form by `==`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any

from course_lib.pictures.drawn import Drawn
from course_lib.pipeline_parallel.actions import Schedule
from course_lib.pipeline_parallel.boxes import Box, Time, write_count
from course_lib.pipeline_parallel.dependencies import Block, Walk, singles, walk
from course_lib.pipeline_parallel.memory import in_flight
from course_lib.pipeline_parallel.validate import Finding, InvalidSchedule, validate

if TYPE_CHECKING:
    from course_lib.pipeline_parallel.picture import SchedulePicture

Cost = Time | Sequence[Time] | Callable[[int, int], Time]  # for all; one a stage; of (stage, micro-batch)
Delay = Time | Callable[[int, int], Time]  # for all; of (sender, receiver)


@dataclass(frozen=True, repr=False)
class Simulation(Drawn):
    """What comes of a schedule. Times are in the unit of the costs."""

    schedule: Schedule
    timeline: tuple[Box, ...]

    @cached_property
    def makespan(self) -> Time:
        """From the start of the first action to the end of the last: the step, if all ranks wait for each other."""
        return max((box.end for box in self.timeline), default=0)

    @cached_property
    def busy(self) -> tuple[Time, ...]:
        """Computing time of every rank."""
        return tuple(sum(box.duration for box in boxes) for boxes in self.by_rank)

    @cached_property
    def idle(self) -> tuple[Time, ...]:
        """Of every rank, the time of the makespan in which it does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @cached_property
    def by_rank(self) -> tuple[tuple[Box, ...], ...]:
        """The boxes of each rank, in their order."""
        boxes: list[list[Box]] = [[] for _ in self.schedule.actions]
        for box in self.timeline:
            boxes[box.rank].append(box)
        return tuple(map(tuple, boxes))

    @property
    def bubble_fraction(self) -> float:
        """Idle time over the whole time of all ranks, the one convention."""
        return share(sum(self.idle), self.makespan * self.schedule.num_ranks)

    @property
    def bubble_of_ideal(self) -> float:
        """Idle time over computing time, the other convention."""
        return share(sum(self.idle), sum(self.busy))

    @cached_property
    def span(self) -> Time:
        """The longest time from a rank's own first start to its own last end.

        This is a step in the zero-bubble papers: no rank waits for another one before its next step.
        """
        return max((boxes[-1].end - boxes[0].start for boxes in self.by_rank if boxes), default=0)

    @property
    def bubble_of_span(self) -> float:
        """What the rank that works longest is idle of the span: the papers' bubble rate."""
        return share(self.span - max(self.busy), self.span)

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For every rank, the most activations it holds, of one chunk for one micro-batch each."""
        return tuple(max(in_flight(actions), default=0) for actions in self.schedule.actions)

    @property
    def peak_activations(self) -> tuple[Fraction, ...]:
        """peak_in_flight in micro-batches of the whole rank: with v chunks, each holds 1/v of the rank's layers."""
        return tuple(Fraction(peak, len(chunks)) for peak, chunks in zip(self.peak_in_flight, self.schedule.stages))

    @property
    def critical_path(self) -> tuple[Box, ...]:
        """The path to what ends last: to make the step shorter, shorten one of these."""
        return self.path_to(max(self.timeline, key=lambda box: box.end)) if self.timeline else ()

    def path_to(self, box: Box) -> tuple[Box, ...]:
        """Boxes, first to last, each of which had to wait for the one before, without a gap but for messages."""
        path = [box]
        while path[-1].cause is not None:
            path.append(self.timeline[path[-1].cause])
        return tuple(reversed(path))

    def finding(self) -> str:
        p, m = self.schedule.num_ranks, self.schedule.num_microbatches
        return (f"{self.schedule.name}, {p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)}: "
                f"{self.bubble_fraction:.1%} idle ({self.bubble_of_ideal:.1%} of the ideal time), "
                f"at most {', '.join(map(write_count, self.peak_activations))} micro-batches in flight")

    def png(self) -> bytes:
        from course_lib.pipeline_parallel.picture import picture_of  # matplotlib is slow to import

        return picture_of([self]).png()


def simulate(schedule: Schedule, forward: Cost = 1, backward_input: Cost = 1, backward_weight: Cost = 1,
             p2p: Delay = 0, overlap: bool = True, pair: Time | None = None) -> Simulation:
    """Give every action of `schedule` its time. ValueError for a schedule that is not valid, and for negative costs.

    A cost is one number, a sequence with one for each stage, or a function of (stage, micro-batch); it is that of one
    chunk for one micro-batch. A whole backward B takes backward_input + backward_weight. `p2p` is the time of a message
    between two ranks, a number or a function of (sender, receiver); between two stages of one rank there is none.
    `overlap=False`: a rank does nothing else while it sends. `pair`: the time for an F and a whole B of another
    micro-batch that stand side by side and run as one, as in DualPipe; None: one after the other.

    >>> from course_lib.pipeline_parallel.schedules import gpipe, one_f_one_b
    >>> simulate(gpipe(p=4, m=8)).makespan, simulate(one_f_one_b(p=4, m=8)).makespan  # 1F1B is no faster
    (33, 33)
    >>> [simulate(schedule(4, 8)).peak_in_flight[0] for schedule in (gpipe, one_f_one_b)]  # it holds less
    [8, 4]
    """
    validate(schedule)
    costs = Costs(schedule, forward, backward_input, backward_weight, p2p, overlap, pair)
    lanes = singles(schedule) if pair is None else [list(paired(blocks)) for blocks in singles(schedule)]
    walked = walk(schedule, lanes)
    if walked.stuck:
        raise InvalidSchedule(schedule.name, [
            Finding(f"rank {rank} cannot run {' and '.join(map(str, block.actions))} as one: the {need} is missing")
            for rank, (block, need) in walked.stuck.items()])
    return timed(schedule, walked, costs)


def schedule_picture(*schedules: Schedule | Simulation, critical_path: bool = False, **costs: Any) -> "SchedulePicture":
    """The schedules below each other on one time axis. Those not simulated yet are, with `costs` (see simulate).

    Without `costs` a rank's forward pass of a micro-batch takes 1, so each of its v chunks takes 1/v.
    """
    from course_lib.pipeline_parallel.picture import picture_of  # matplotlib is slow to import

    if not schedules:
        raise ValueError("schedule_picture(): expected at least one Schedule or Simulation")
    simulations = [each if isinstance(each, Simulation) else simulate(each, **(costs or of_a_whole_rank(each)))
                   for each in schedules]
    unit = [] if costs else ["time (1: a rank's forward pass of a micro-batch)"]
    return picture_of(simulations, critical_path, *unit)


def of_a_whole_rank(schedule: Schedule) -> dict[str, Time]:
    """Costs in which all chunks of a rank together take 1 for each of a micro-batch's three computations."""
    each = Fraction(1, len(schedule.stages[0]))
    return {"forward": each, "backward_input": each, "backward_weight": each}


class Costs:
    """The arguments of simulate, checked, as functions."""

    def __init__(self, schedule: Schedule, forward: Cost = 1, backward_input: Cost = 1, backward_weight: Cost = 1,
                 p2p: Delay = 0, overlap: bool = True, pair: Time | None = None) -> None:
        named = {"forward": forward, "backward_input": backward_input, "backward_weight": backward_weight}
        f, i, w = (per_stage(name, cost, schedule.num_stages) for name, cost in named.items())
        self.of = {"F": f, "I": i, "W": w, "B": lambda stage, j: i(stage, j) + w(stage, j)}
        self.p2p = two_numbers("p2p", p2p)
        self.overlap = overlap
        self.pair = None if pair is None else checked("pair", pair)

    def block(self, block: Block, schedule: Schedule) -> Time:
        """Time of one block: of the action in it, or of a forward and a backward that run together."""
        if len(block.actions) > 1:
            return self.pair
        (action,) = block.actions
        return self.of[action.kind](schedule.stages[block.rank][action.chunk], action.microbatch)


def per_stage(name: str, cost: Cost, num_stages: int) -> Callable[[int, int], Time]:
    """cost(stage, micro-batch) from one number for all, or one for each stage. ValueError for another count of them."""
    if not isinstance(cost, Sequence):
        return two_numbers(name, cost)
    if len(cost) != num_stages:
        raise ValueError(f"{name} has {len(cost)} costs: expected one, or one for each of {num_stages} stages")
    costs = [checked(f"{name}[{stage}]", each) for stage, each in enumerate(cost)]
    return lambda stage, microbatch: costs[stage]


def two_numbers(name: str, cost: Delay) -> Callable[[int, int], Time]:
    """A cost as a function, whose answers are checked, too."""
    if callable(cost):
        return lambda first, second: checked(f"{name}({first}, {second})", cost(first, second))
    always = checked(name, cost)
    return lambda first, second: always


def checked(name: str, time: Time) -> Time:
    """`time`, if it is a finite number of 0 or more. ValueError, with `name`, otherwise."""
    if isinstance(time, bool) or not isinstance(time, Real) or not 0 <= time < math.inf:
        raise ValueError(f"{name}={time!r}: expected a finite number of 0 or more")
    return time


def paired(blocks: list[Block]) -> list[Block]:
    """Every F with the whole B of another micro-batch behind it as one block."""
    joined: list[Block] = []
    for block in blocks:
        last, now = joined[-1].actions if joined else (), block.actions[0]
        if len(last) == 1 and last[0].kind + now.kind == "FB" and last[0].microbatch != now.microbatch:
            joined[-1] = joined[-1]._replace(actions=(*last, now))
        else:
            joined.append(block)
    return joined


def timed(schedule: Schedule, walked: Walk, costs: Costs) -> Simulation:
    """Each block starts when its rank is free and the last thing it needs has arrived."""
    boxes: list[Box] = []
    free: list[Time] = [0] * schedule.num_ranks
    last_of: list[int | None] = [None] * schedule.num_ranks  # the rank's last box
    sent: list[tuple[int, list[Time], int]] = []  # of each block: its rank, when it sends what, its last box
    for block, sources in zip(walked.done, walked.sources):
        rank, actions = block
        start, cause = free[rank], last_of[rank]
        for place, number in sources:
            maker, times, box = sent[place]
            arrives = times[number] + (costs.p2p(maker, rank) if maker != rank else 0)
            # What arrives last is what it waited for: following these causes back from the end gives the critical path.
            if arrives > start:
                start, cause = arrives, box
        end = free[rank] = start + costs.block(block, schedule)
        # A pair runs as one; two boxes, each of half the time, keep one box an action.
        times = [start, half(start, end), end] if len(actions) > 1 else [start, end]
        for action, begins, ends in zip(actions, times, times[1:]):
            boxes.append(Box(rank, schedule.stages[rank][action.chunk], action, begins, ends, cause))
            cause = last_of[rank] = len(boxes) - 1
        sent.append((rank, [end] * len(actions) if costs.overlap else sends(schedule, block, costs, free), cause))
    return Simulation(schedule, tuple(boxes))


def sends(schedule: Schedule, block: Block, costs: Costs, free: list[Time]) -> list[Time]:
    """When a rank that does nothing beside starts to send what each action made; `free` moves on meanwhile."""
    starts, stages = [], schedule.stages[block.rank]
    for action in block.actions:
        starts.append(free[block.rank])
        target = stages[action.chunk] + {"F": 1, "B": -1, "I": -1, "W": schedule.num_stages}[action.kind]
        if 0 <= target < schedule.num_stages and target not in stages:
            free[block.rank] += costs.p2p(block.rank, schedule.where(target)[0])
    return starts


def half(start: Time, end: Time) -> Time:
    """The middle of two times, exact where both are."""
    return (start + end) / (Fraction(2) if isinstance(end, Rational) else 2)


def share(part: Time, whole: Time) -> float:
    """part / whole, rounded once only where both are exact."""
    if not whole:
        return 0.0
    exact = isinstance(part, Rational) and isinstance(whole, Rational)
    return float(Fraction(part) / Fraction(whole)) if exact else part / whole
