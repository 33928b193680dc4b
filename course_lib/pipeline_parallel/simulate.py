"""When every action of a schedule runs, given what it costs, or as it was measured on ranks.

A rank does its actions in their order, each as soon as what it needs has arrived. Whole numbers and Fractions go in and
come out exactly, so that a simulated idle share can be compared with a closed form by `==`.

Published bubble rates are predicted from two costs, fitted on each model's smallest m. For a given order, a step is a
sum along its longest path: a F + b I + c W + d p2p with whole numbers a, b, c, d that the simulation counts. So the fit
is Newton's method with exact derivatives: simulate, count, solve, until the path stays. What a pipeline waits for at
its start and its end holds F and I equally often (1F1B waits (p - 1)(F + I + W), ZB-H1 (p - 1)(F + I - W)), so the
rates cannot tell F from I: they are taken as equal, 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from numbers import Rational, Real
from typing import TYPE_CHECKING, NamedTuple

from course_lib.facts.published import COMPARED, BubbleRates
from course_lib.pipeline_parallel.schedules import KINDS, SCHEDULES, Action, Schedule, in_flight
from course_lib.pipeline_parallel.validate import Walk, validate, walk

if TYPE_CHECKING:  # schedules as data need no torch
    from course_lib.runtime import Timeline

Time = int | float | Fraction
Cost = Time | Sequence[Time] | Callable[[int, int], Time]  # for all; one a stage; of (stage, micro-batch)
Delay = Time | Callable[[int, int], Time]  # for all; of (sender, receiver)


class TimedAction(NamedTuple):
    """An action and when it runs. `cause` is the position in the timeline of what it had to wait for last."""

    rank: int
    stage: int
    action: Action
    start: Time
    end: Time
    cause: int | None

    @property
    def duration(self) -> Time:
        """How long the action runs."""
        return self.end - self.start


@dataclass(frozen=True, repr=False)
class Simulation:
    """A schedule with its times, simulated or measured: when each action runs, in the unit of the costs."""

    schedule: Schedule
    timeline: tuple[TimedAction, ...]

    @cached_property
    def makespan(self) -> Time:
        """From the start of the first action to the end of the last: the step, if all ranks wait for each other."""
        return max((timed.end for timed in self.timeline), default=0)

    @cached_property
    def busy(self) -> tuple[Time, ...]:
        """Computing time of every rank."""
        return tuple(sum(timed.duration for timed in of_rank) for of_rank in self.by_rank)

    @cached_property
    def idle(self) -> tuple[Time, ...]:
        """Of every rank, the time of the makespan in which it does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @cached_property
    def by_rank(self) -> tuple[tuple[TimedAction, ...], ...]:
        """The timed actions of each rank, in their order."""
        of_ranks: list[list[TimedAction]] = [[] for _ in self.schedule.actions]
        for timed in self.timeline:
            of_ranks[timed.rank].append(timed)
        return tuple(map(tuple, of_ranks))

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
        return max((of_rank[-1].end - of_rank[0].start for of_rank in self.by_rank if of_rank), default=0)

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

    def path_to(self, last: TimedAction) -> tuple[TimedAction, ...]:
        """Actions up to `last`, each of which had to wait for the one before, without a gap but for messages."""
        path = [last]
        while path[-1].cause is not None:
            path.append(self.timeline[path[-1].cause])
        return tuple(reversed(path))

    def __repr__(self) -> str:
        p, m = self.schedule.num_ranks, self.schedule.num_microbatches
        return (f"{self.schedule.name}, {p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)}: "
                f"{self.bubble_fraction:.1%} idle ({self.bubble_of_ideal:.1%} of the ideal time), "
                f"at most {', '.join(map(write_count, self.peak_activations))} micro-batches in flight")


def write_count(number: Fraction) -> str:
    """A whole number as it is, another one with four figures."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.4g}"


def share(part: Time, whole: Time) -> float:
    """part / whole, rounded once only where both are exact."""
    if not whole:
        return 0.0
    # Two exact times give an exact share, so that tests can compare it with a closed form.
    exact = isinstance(part, Rational) and isinstance(whole, Rational)
    return float(Fraction(part) / Fraction(whole)) if exact else part / whole


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


PREDICTED = [name for name in COMPARED if name in SCHEDULES]  # of the paper's: two of its schedules are found by search
STEPS = 8  # Newton's method; the path usually stays after two or three


@dataclass(frozen=True)
class RelativeCosts:
    """Times in units of F = I, a rank's layers forward, or backward for the input, for one micro-batch."""

    backward_weight: float = 1.0
    p2p: float = 0.0


def fit_costs(published: BubbleRates) -> RelativeCosts:
    """The costs whose simulated rates come closest to the published ones at the smallest m."""
    m, costs = min(published.rates), RelativeCosts()
    orders = [order_of(published, m, name) for name in PREDICTED]
    for _ in range(STEPS):
        ww = wp = pp = w = p = 0.0  # the normal equations of least squares in two unknowns
        for name, order in zip(PREDICTED, orders):
            rate, of_w, of_p = rate_with_slopes(simulate_rank(*order, costs), m, costs)
            off = published.rates[m][name].value - rate
            ww, wp, pp, w, p = ww + of_w**2, wp + of_w * of_p, pp + of_p**2, w + of_w * off, p + of_p * off
        before, area = costs, ww * pp - wp**2
        # A negative cost has no meaning, and the simulation refuses it.
        costs = RelativeCosts(max(0.0, costs.backward_weight + (pp * w - wp * p) / area),
                              max(0.0, costs.p2p + (ww * p - wp * w) / area))
        if max(abs(costs.backward_weight - before.backward_weight), abs(costs.p2p - before.p2p)) < 1e-6:
            break
    return costs


def predict_rates(published: BubbleRates, costs: RelativeCosts) -> dict[tuple[int, str], float]:
    """The simulated bubble rate for every (m, schedule) of the table that a generator is here for."""
    return {(m, name): simulate_rank(*order_of(published, m, name), costs).bubble_of_span
            for m in published.rates for name in PREDICTED}


def order_of(published: BubbleRates, m: int, name: str) -> tuple[Schedule, Walk]:
    """A schedule and an order in which it can run, which the costs do not change."""
    schedule = SCHEDULES[name](published.num_ranks, m, published.num_chunks)
    return schedule, walk(schedule)


def simulate_rank(schedule: Schedule, walked: Walk, costs: RelativeCosts) -> Simulation:
    """The schedule in times of a whole rank's forward pass, each of its chunks taking an equal part."""
    chunks = len(schedule.stages[0])
    return give_times(schedule, walked,
                      Costs(schedule, 1 / chunks, 1 / chunks, costs.backward_weight / chunks, costs.p2p))


def rate_with_slopes(simulation: Simulation, m: int, costs: RelativeCosts) -> tuple[float, float, float]:
    """The bubble rate 1 - m (2 + W) / span, and its derivatives by W and p2p."""
    rank = max(simulation.by_rank, key=lambda of_rank: of_rank[-1].end - of_rank[0].start)
    # The way to the rank's first start is in both counts and falls out; the first action itself belongs to the span.
    weights, messages = (last + first - before for last, first, before in zip(
        *map(count_weights_and_messages, (simulation.path_to(rank[-1]), rank[:1], simulation.path_to(rank[0])))))
    span, computing = simulation.span, m * (2 + costs.backward_weight)
    by_weights = weights / len(simulation.schedule.stages[0])
    return 1 - computing / span, computing / span**2 * by_weights - m / span, computing / span**2 * messages


def count_weights_and_messages(path: Sequence[TimedAction]) -> tuple[int, int]:
    """How often weight gradients and messages stand on the path."""
    return (sum(timed.action.kind in "BW" for timed in path),
            sum(timed.rank != after.rank for timed, after in pairwise(path)))
