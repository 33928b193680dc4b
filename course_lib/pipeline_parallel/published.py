"""Published bubble rates, predicted: relative costs fitted on each model's smallest m, everything else simulated.

For a given order, a step is a sum along its longest path: a F + b I + c W + d p2p with whole numbers a, b, c, d that
the simulation counts. So the fit is Newton's method with exact derivatives: simulate, count, solve, until the path
stays. What a pipeline waits for at its start and its end holds F and I equally often (1F1B waits (p - 1)(F + I + W),
ZB-H1 (p - 1)(F + I - W)), so the rates cannot tell F from I: they are taken as equal, 1, and two numbers are fitted
to four rates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from course_lib.facts.published import COMPARED, BubbleRates
from course_lib.pipeline_parallel.dependencies import Walk, walk
from course_lib.pipeline_parallel.schedules import SCHEDULES, Schedule
from course_lib.pipeline_parallel.simulate import Costs, Simulation, give_times
from course_lib.pipeline_parallel.timing import TimedAction

GENERATED = [name for name in COMPARED if name in SCHEDULES]  # of the paper's: two of its schedules are found by search
STEPS = 8  # Newton's method; the path usually stays after two or three


@dataclass(frozen=True)
class RelativeCosts:
    """Times in units of F = I, a rank's layers forward, or backward for the input, for one micro-batch."""

    backward_weight: float
    p2p: float


def fit(published: BubbleRates) -> RelativeCosts:
    """The costs whose simulated rates come closest to the four published ones at the smallest m."""
    m = min(published.rates)
    goal = np.array([published.rates[m][name].value for name in GENERATED])
    orders = [order(published, m, name) for name in GENERATED]
    costs = np.array([1.0, 0.0])
    for _ in range(STEPS):
        rates, slopes = zip(*(with_slope(simulate_order(schedule, walked, RelativeCosts(*costs)), m, costs)
                              for schedule, walked in orders))
        change = np.linalg.lstsq(np.array(slopes), goal - np.array(rates), rcond=None)[0]
        # A negative cost has no meaning, and the simulation refuses it.
        costs = np.maximum(costs + change, 0.0)
        if np.abs(change).max() < 1e-6:
            break
    return RelativeCosts(*map(float, costs))


def predict(published: BubbleRates, costs: RelativeCosts) -> dict[tuple[int, str], float]:
    """The simulated bubble rate for every (m, schedule) of the table that a generator is here for."""
    return {(m, name): simulate_order(*order(published, m, name), costs).bubble_of_span
            for m in published.rates for name in GENERATED}


def order(published: BubbleRates, m: int, name: str) -> tuple[Schedule, Walk]:
    """A schedule and an order in which it can run, which the costs do not change."""
    schedule = SCHEDULES[name](published.num_ranks, m, published.num_chunks)
    return schedule, walk(schedule)


def simulate_order(schedule: Schedule, walked: Walk, costs: RelativeCosts) -> Simulation:
    """The schedule in times of a whole rank's forward pass, each of its chunks taking an equal part."""
    chunks = len(schedule.stages[0])
    return give_times(schedule, walked,
                      Costs(schedule, 1 / chunks, 1 / chunks, costs.backward_weight / chunks, costs.p2p))


def with_slope(simulation: Simulation, m: int, costs: np.ndarray) -> tuple[float, np.ndarray]:
    """The bubble rate 1 - m (2 + W) / span, and its derivatives by W and p2p."""
    rank = max(simulation.by_rank, key=lambda of_rank: of_rank[-1].end - of_rank[0].start)
    chunks = len(simulation.schedule.stages[0])
    # The way to the rank's first start is in both counts and falls out; the first action itself belongs to the span.
    counts = (count_weights_and_messages(simulation.path_to(rank[-1])) + count_weights_and_messages(rank[:1])
              - count_weights_and_messages(simulation.path_to(rank[0])))
    of_span = counts / [chunks, 1]
    span, computing = simulation.span, m * (2 + costs[0])
    of_computing = np.array([m, 0])
    return 1 - computing / span, computing / span**2 * of_span - of_computing / span


def count_weights_and_messages(path: Sequence[TimedAction]) -> np.ndarray:
    """How often weight gradients and messages stand on the path."""
    return np.array([sum(timed.action.kind in "BW" for timed in path),
                     sum(timed.rank != after.rank for timed, after in pairwise(path))])
