"""Exercise 10.7: which term of a planner is wrong, and by what factor, on runs that were published.

    a planner whose `cause` takes f times too long says     p = c f    of the c seconds that are right
    and a bubble that is longer by as much as the work is:  b (w + (f - 1) c) / w        w  matmul, memory, tp, launch
    error = mean of |ln(planned / measured)|

Right terms are those of course_lib.planner, measured steps those that were published (course_lib.facts, each row with
its source). Runs are drawn so that any other term, or another factor, leaves clearly more of the error.
"""

import math
import random
from collections.abc import Iterable
from functools import lru_cache
from statistics import mean
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.judges.planner.published import CAUSES, WORK, Published, dense_runs
from course_lib.grading.on_rank.plain import values
from course_lib.grading.spent import Spent

FACTORS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)
CLEARLY = 2.0  # times the right term's error is what any other leaves, at least
NEAR = 0.08  # error of a run that is asked about, with all terms right
TRIES = 400
NUM_RUNS = 8
Seconds = dict[str, float]


class WrongTerm(Exercise):
    number = "10.7"
    budget = "the cause and its factor, of every planner"
    run = staticmethod(values)
    example = ((4.0, 1.0, 2.0, 0.0, 0.5, 6.5), (4.0, 1.0, 6.0, 1.1, 0.5, 9.3), (8.0, 2.0, 0.0, 2.0, 1.0, 13.0))
    # Cause, factor, whether all runs have long bubbles. Messages, products and waiting, too long and too short.
    wrongs = (("tp", 2.0, False), ("matmul", 2.0, True), ("dp", 8.0, False), ("matmul", 0.5, False),
              ("bubble", 4.0, False), ("memory", 4.0, False), ("tp", 0.125, False), ("dp", 0.25, False))

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        planned = [dict.fromkeys(CAUSES, 0.0) | dict(zip(("matmul", "memory", "tp", "bubble", "dp"), run))
                   for run in self.example]
        drawn = source.choice(("matmul", "memory", "tp", "bubble", "dp")), source.choice(FACTORS), False
        return [Trial([[planned, [run[-1] for run in self.example]]], "the example", hidden=["tp", 2.0]),
                *(wrong_trial(*which, place + 1) for place, which in enumerate(self.wrongs)),
                wrong_trial(*drawn, len(self.wrongs) + 1, seed)]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (cause, factor), (given,) = trial.hidden, answers
        if not is_term(given):
            return f"it returned {describe(given)}: expected a cause and a factor above 0, such as (\"tp\", 2.0)"
        if given[0] not in CAUSES:
            return f"it returned {given[0][:40]!r}: expected one of {', '.join(CAUSES)}"
        if given[0] == cause and math.isclose(given[1], factor, rel_tol=1e-6):
            return None
        if given[0] == cause:
            return self.opening(trial, answers) + self.of_factor(given[1], factor)
        left, least = (error_left(*trial.inputs[0], *its) for its in (given, (cause, factor)))
        return (f"{self.opening(trial, answers)}with this put right, steps are still missed by {100 * left:.1f} % on "
                f"average, and by {100 * least:.1f} % with another cause")

    def of_factor(self, given: float, factor: float) -> str:
        if math.isclose(given, 1 / factor, rel_tol=1e-6):
            return "the cause is right, the factor is upside down: it says how many times too long the planner's is"
        return ("the cause is right, another factor leaves less of the error; does the bubble grow with its work in "
                "yours?")

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        return "it returned {}, {:g}: ".format(*answers[0]) if is_term(answers[0]) else ""

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        planned, measured = trial.inputs[0]
        before, left = mean_error(map(total, planned), measured), error_left(planned, measured, *answers[0])
        return [Spent("misses steps by", left, before, "share", " with the term put right", limit="{} before",
                      slack=math.inf)]


def is_term(given: Any) -> bool:
    return (type(given) is list and len(given) == 2 and type(given[0]) is str and type(given[1]) in (int, float)
            and 0 < given[1] < math.inf)


def total(seconds: Seconds) -> float:
    return sum(seconds.values())


def put_wrong(seconds: Seconds, cause: str, factor: float, waits: bool = True) -> Seconds:
    """What a planner says that takes `factor` times too long for `cause`. waits: the bubble is longer by its share."""
    more = (factor - 1) * seconds[cause]
    longer = {cause: seconds[cause] + more}
    if cause in WORK and waits:
        longer["bubble"] = seconds["bubble"] * (1 + more / sum(seconds[each] for each in WORK))
    return seconds | longer


def error_left(planned: list[Seconds], measured: list[float], cause: str, factor: float, waits: bool = True) -> float:
    """With the planner's term put right: the mean error of its steps."""
    return mean_error((total(put_wrong(run, cause, 1 / factor, waits)) for run in planned), measured)


def mean_error(steps: Iterable[float], measured: Iterable[float]) -> float:
    return mean(abs(math.log(step / seconds)) for step, seconds in zip(steps, measured))


@lru_cache(maxsize=256)
def wrong_trial(cause: str, factor: float, long_bubbles: bool, number: int, seed: int = 0) -> Trial:
    """Published runs on which this term is wrong, and clearly no other is; if there are such runs, the sum of all steps
    points to another term.
    """
    source = random.Random(f"{cause} {factor} {number} {seed}")
    pool, best = telling_runs("bubble" if long_bubbles else cause), (False, 0.0, [])
    for _ in range(TRIES):
        runs = source.sample(pool[:20] if long_bubbles else pool, NUM_RUNS)
        clear = clearness(runs, cause, factor)
        best = max(best, (clear > CLEARLY and points_elsewhere(runs, cause, factor), clear, runs),
                   key=lambda it: it[:2])
        if best[0]:
            break
    runs = best[-1]
    return Trial([[[put_wrong(run.seconds, cause, factor) for run in runs], [run.measured for run in runs]]],
                 f"planner {number}, {len(runs)} published runs", hidden=[cause, factor])


def clearness(runs: list[Published], cause: str, factor: float) -> float:
    """The least error that any other term leaves, over that of the right one."""
    asked = [put_wrong(run.seconds, cause, factor) for run in runs], [run.measured for run in runs]
    others = ((each, by) for each in CAUSES for by in FACTORS if (each, by) != (cause, factor))
    return min(error_left(*asked, *other) for other in others) / error_left(*asked, cause, factor)


def points_elsewhere(runs: list[Published], cause: str, factor: float) -> bool:
    """Whether the steps added up, where errors of both signs cancel out, come nearest to the measured ones with another
    term put right.
    """
    asked, measured = [put_wrong(run.seconds, cause, factor) for run in runs], sum(run.measured for run in runs)
    terms = ((each, by) for each in CAUSES for by in FACTORS)
    return (cause, factor) != min(terms, key=lambda term: abs(
        sum(total(put_wrong(run, term[0], 1 / term[1])) for run in asked) - measured))


@lru_cache(maxsize=16)
def telling_runs(cause: str) -> list[Published]:
    """The 40 published runs that the planner misses by little and in which `cause` takes most of the step."""
    near = [run for run in dense_runs() if abs(math.log(total(run.seconds) / run.measured)) < NEAR]
    return sorted(near, key=lambda run: -run.seconds[cause] / total(run.seconds))[:40]
