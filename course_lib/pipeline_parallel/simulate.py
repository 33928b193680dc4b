"""When every action of a schedule runs, given what it costs, or as it was measured on ranks.

A rank does its actions in their order, each as soon as what it needs has arrived. Whole numbers and Fractions go in and
come out exactly, so that a simulated idle share can be compared with a closed form by `==`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import TYPE_CHECKING, Any

from course_lib.pictures.drawn import Drawn
from course_lib.pipeline_parallel.dependencies import Walk, walk
from course_lib.pipeline_parallel.schedules import KINDS, Action, Schedule
from course_lib.pipeline_parallel.timing import Time, TimedAction, Timing, write_count
from course_lib.pipeline_parallel.validate import validate

if TYPE_CHECKING:  # schedules as data need no torch
    from course_lib.pipeline_parallel.picture import SchedulePicture
    from course_lib.runtime import Timeline

Cost = Time | Sequence[Time] | Callable[[int, int], Time]  # for all; one a stage; of (stage, micro-batch)
Delay = Time | Callable[[int, int], Time]  # for all; of (sender, receiver)


@dataclass(frozen=True, repr=False)
class Simulation(Timing, Drawn):
    """What comes of a schedule, simulated or measured. Times are in the unit of the costs."""

    def finding(self) -> str:
        p, m = self.schedule.num_ranks, self.schedule.num_microbatches
        return (f"{self.schedule.name}, {p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)}: "
                f"{self.bubble_fraction:.1%} idle ({self.bubble_of_ideal:.1%} of the ideal time), "
                f"at most {', '.join(map(write_count, self.peak_activations))} micro-batches in flight")

    def png(self) -> bytes:
        from course_lib.pipeline_parallel.picture import picture_of  # matplotlib is slow to import

        return picture_of([self]).png()


def simulate(schedule: Schedule, forward: Cost = 1, backward_input: Cost = 1, backward_weight: Cost = 1,
             p2p: Delay = 0) -> Simulation:
    """Give every action of `schedule` its time. ValueError for a schedule that is not valid, and for negative costs.

    A cost is one number, a sequence with one for each stage, or a function of (stage, micro-batch); it is that of one
    chunk for one micro-batch. A whole backward B takes backward_input + backward_weight. `p2p` is the time of a message
    between two ranks, a number or a function of (sender, receiver); between two stages of one rank there is none.

    >>> from course_lib.pipeline_parallel.schedules import gpipe, one_f_one_b
    >>> simulate(gpipe(p=4, m=8)).makespan, simulate(one_f_one_b(p=4, m=8)).makespan  # 1F1B is no faster
    (33, 33)
    >>> [simulate(schedule(4, 8)).peak_in_flight[0] for schedule in (gpipe, one_f_one_b)]  # it holds less
    [8, 4]
    """
    validate(schedule)
    return give_times(schedule, walk(schedule), Costs(schedule, forward, backward_input, backward_weight, p2p))


def schedule_picture(*schedules: Schedule | Simulation, **costs: Any) -> "SchedulePicture":
    """The schedules below each other on one time axis. Those not simulated yet are, with `costs` (see simulate).

    Without `costs` a rank's forward pass of a micro-batch takes 1, so each of its v chunks takes 1/v. ValueError where
    there is no schedule.
    """
    from course_lib.pipeline_parallel.picture import picture_of  # matplotlib is slow to import

    if not schedules:
        raise ValueError("schedule_picture(): expected at least one Schedule or Simulation")
    simulations = [each if isinstance(each, Simulation) else simulate(each, **(costs or costs_of_a_whole_rank(each)))
                   for each in schedules]
    unit = [] if costs else ["time (1: a rank's forward pass of a micro-batch)"]
    return picture_of(simulations, *unit)


def costs_of_a_whole_rank(schedule: Schedule) -> dict[str, Time]:
    """Costs in which all chunks of a rank together take 1 for each of a micro-batch's three computations."""
    each = Fraction(1, len(schedule.stages[0]))
    return {"forward": each, "backward_input": each, "backward_weight": each}


def measured_step(schedule: Schedule, timeline: "Timeline", step: int | None = None) -> Simulation:
    """The actions of one step as `timeline` saw them, `launch(...).timeline` for all ranks, in seconds from its start.

    `step` counts a pipeline's steps from 0; None is the last one recorded. Computing is what is inside the actions,
    idle is everything else: waiting, and the time that messages take. Raises ValueError where an action of the step was
    not recorded.
    """
    spans = [event for event in timeline.events if event.name in KINDS and {"microbatch", "step"} <= set(event.labels)]
    steps = sorted({event.labels["step"] for event in spans})
    step = steps[-1] if step is None and steps else step
    spans = sorted((event for event in spans if event.labels["step"] == step), key=lambda event: event.start_s)
    places = {rank: place for place, rank in enumerate(sorted({event.rank for event in spans}))}
    zero = spans[0].start_s if spans else 0.0
    result = Simulation(schedule, tuple(
        TimedAction(places[event.rank], event.labels["stage"],
                    Action(event.name, event.labels["microbatch"], event.labels["chunk"]),
                    event.start_s - zero, event.end_s - zero, cause=None) for event in spans))
    order = [[timed.action for timed in of_rank] for of_rank in result.by_rank]
    if order != [list(actions) for actions in schedule.actions]:
        raise ValueError(f"step {step} of {schedule.name!r} is not in the timeline as a whole: recorded were steps "
                         f"{steps} on ranks {list(timeline.ranks)}. Expected record_timeline() around the step, on all "
                         f"{schedule.num_ranks} ranks, once")
    return result


class Costs:
    """The arguments of simulate, checked, as functions."""

    def __init__(self, schedule: Schedule, forward: Cost = 1, backward_input: Cost = 1, backward_weight: Cost = 1,
                 p2p: Delay = 0) -> None:
        named = {"forward": forward, "backward_input": backward_input, "backward_weight": backward_weight}
        f, i, w = (per_stage(name, cost, schedule.num_stages) for name, cost in named.items())
        self.of = {"F": f, "I": i, "W": w, "B": lambda stage, j: i(stage, j) + w(stage, j)}
        self.p2p = two_numbers("p2p", p2p)


def per_stage(name: str, cost: Cost, num_stages: int) -> Callable[[int, int], Time]:
    """cost(stage, micro-batch) from one number for all, or one for each stage. ValueError for another count of them."""
    if not isinstance(cost, Sequence):
        return two_numbers(name, cost)
    if len(cost) != num_stages:
        raise ValueError(f"{name} has {len(cost)} costs: expected one, or one for each of {num_stages} stages")
    costs = [require_time(f"{name}[{stage}]", time) for stage, time in enumerate(cost)]
    return lambda stage, microbatch: costs[stage]


def two_numbers(name: str, cost: Delay) -> Callable[[int, int], Time]:
    """A cost as a function, whose answers are checked, too."""
    if callable(cost):
        # A function can only be checked when it is asked.
        return lambda first, second: require_time(f"{name}({first}, {second})", cost(first, second))
    always = require_time(name, cost)
    return lambda first, second: always


def require_time(name: str, time: Time) -> Time:
    """`time`, if it is a finite number of 0 or more. ValueError, with `name`, otherwise."""
    if isinstance(time, bool) or not isinstance(time, Real) or not 0 <= time < math.inf:
        raise ValueError(f"{name}={time!r}: expected a finite number of 0 or more")
    return time


def give_times(schedule: Schedule, walked: Walk, costs: Costs) -> Simulation:
    """Each action starts when its rank is free and the last thing it needs has arrived."""
    timeline: list[TimedAction] = []
    free: list[Time] = [0] * schedule.num_ranks
    last_of: list[int | None] = [None] * schedule.num_ranks  # the position of the rank's last action
    for (rank, action), sources in zip(walked.done, walked.sources):
        stage, start, cause = schedule.stages[rank][action.chunk], free[rank], last_of[rank]
        for source in sources:
            maker = timeline[source]
            arrives = maker.end + (costs.p2p(maker.rank, rank) if maker.rank != rank else 0)
            # What arrives last is what it waited for: following these causes back from the end gives the longest path.
            if arrives > start:
                start, cause = arrives, source
        free[rank] = start + costs.of[action.kind](stage, action.microbatch)
        last_of[rank] = len(timeline)
        timeline.append(TimedAction(rank, stage, action, start, free[rank], cause))
    return Simulation(schedule, tuple(timeline))
