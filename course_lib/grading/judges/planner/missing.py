"""Exercise 10.8: a term that is missing in a planner, and a rate that is wrong, judged on runs that were not fitted.

    step = (rate matmul + memory + tp + launch) (1 + (pp - 1)/(v m)) + pp_messages + dp + optimiser
    error = mean of |ln(step / measured)|

`rate` is to be fitted; runs to fit on have v = 1, of the unseen ones many have more. Which way it is fitted must not
decide: trials are drawn so that three sound ways agree, and bubbles of the two usual mistakes do not. Sources:
course_lib.facts, each row with its own; Narayanan et al. 2021, section 2.2, for the bubble.
"""

import math
import random
from collections.abc import Callable
from functools import lru_cache
from statistics import mean, median
from typing import Any

from course_lib.grading.compare import describe, is_list_of
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.judges.planner.causes import mean_error
from course_lib.grading.judges.planner.published import Published, dense_runs
from course_lib.grading.on_rank.plain import values
from course_lib.grading.spent import Spent

SHOWN = ("memory", "tp", "launch", "dp", "optimiser")  # causes that come as they are
BESIDE = ("pp_messages", "dp", "optimiser")  # no stage waits for these
RATES = (1.3, 1.5, 1.8, 2.2)  # times too fast the planner's products are
PAR = 1.3  # of the error that the formula above leaves
SMALLEST = 0.035  # par, where the formula leaves next to nothing
AGREE, MISTAKEN = 1.2, 1.4  # of that error: what other fits may have, and what mistakes have to have
TRIES = 60
Run = dict[str, Any]
Term = Callable[[Run], float]


class MissingTerm(Exercise):
    number = "10.8"
    right = "the steps are possible"
    budget = "par: on runs that it has not seen, 1.3 times the error of the library's term and of a rate fitted once"
    is_plan = True
    run = staticmethod(values)
    keys = ("matmul", "memory", "tp", "launch", "pp_messages", "dp", "optimiser", "pp", "micro_batches", "v",
            "measured")
    example = (((10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 8, 1, 12.5),
                (10.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.0, 2, 4, 1, 16.025)),
               ((8.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 4, 4, 2, 18.0),))

    def trials(self, seed: int) -> list[Trial]:
        fitted, unseen = ([dict(zip(self.keys, run)) for run in runs] for runs in self.example)
        return [made_trial(fitted, unseen, "the example, one run to say"),
                *(drawn_trial(number) for number in range(4)), drawn_trial(100 + seed)]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (given,), runs = answers, trial.inputs[0][1]
        if not is_list_of(given, int, float):
            return f"it returned {describe(given)}: expected a list of numbers, the seconds of each unseen run"
        if len(given) != len(runs):
            return f"it returned {len(given)} steps: expected {len(runs)}, one for each unseen run"
        odd = next((step for step in given if not 0 < step < 1e300), None)
        return None if odd is None else f"it returned a step of {describe(odd)} s: expected more than 0"

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        measured, par, before = (trial.hidden[key] for key in ("measured", "par", "before"))
        where = f" on average ({100 * before:.1f} % with neither term nor rate)"
        return [Spent("misses unseen runs by", mean_error(answers[0], measured), par, "share", where,
                      why=reason(trial, answers[0]), limit="par {}", slack=1e-9, decides=True)]


def reason(trial: Trial, steps: list[float]) -> str:
    """Which runs the answer misses most, and in which direction, as a sentence for the reader."""
    runs, measured = trial.inputs[0][1], trial.hidden["measured"]
    misses = [math.log(step / seconds) for step, seconds in zip(steps, measured)]
    groups = (("runs with one stage, which have no bubble,", [run["pp"] == 1 for run in runs]),
              ("runs with several chunks on a stage", [run["v"] > 1 for run in runs]),
              ("runs with one chunk on a stage", [run["v"] == 1 < run["pp"] for run in runs]))
    found = [(mean(miss for miss, its in zip(misses, of) if its), name) for name, of in groups if any(of)]
    worst, name = max(found, key=lambda it: abs(it[0]))
    return f"{name} are said {100 * abs(math.expm1(worst)):.0f} % too {'slow' if worst > 0 else 'fast'}"


# The reference, and what else is tried

def bubble(run: Run) -> float:
    """The bubble as a share of the work: (pp - 1)/(v m)."""
    return (run["pp"] - 1) / (run["v"] * run["micro_batches"])


MISTAKES: tuple[Term, ...] = (
    lambda run: (run["pp"] - 1) / run["micro_batches"],
    lambda run: (run["pp"] - 1) / (run["v"] * run["micro_batches"] + run["pp"] - 1))


def step_of(run: Run, rate: float, term: Term = bubble) -> float:
    work = rate * run["matmul"] + run["memory"] + run["tp"] + run["launch"]
    return work * (1 + term(run)) + sum(run[cause] for cause in BESIDE)


def rate_of(run: Run, term: Term = bubble) -> float:
    """The rate with which the formula gives just the measured step of this run."""
    work = (run["measured"] - sum(run[cause] for cause in BESIDE)) / (1 + term(run))
    return (work - run["memory"] - run["tp"] - run["launch"]) / run["matmul"]


def grid_rate(fitted: list[Run], power: int, term: Term = bubble) -> float:
    """The rate from 1 to 3 that leaves the least sum of |ln(step / measured)|, to the power 1 or 2."""
    return min((1 + place / 50 for place in range(100)), key=lambda rate: sum(
        abs(math.log(step_of(run, rate, term) / run["measured"])) ** power for run in fitted))


def errors_of(fitted: list[Run], unseen: list[Run]) -> tuple[list[float], list[float]]:
    """Errors on unseen runs: those of three sound ways to fit, the reference first, and those of the usual mistakes."""
    def left(rate: float, term: Term = bubble) -> float:
        return mean_error((step_of(run, rate, term) for run in unseen), [run["measured"] for run in unseen])

    sound = [left(grid_rate(fitted, 1)), left(grid_rate(fitted, 2)), left(median(map(rate_of, fitted)))]
    return sound, [left(grid_rate(fitted, 1, term), term) for term in MISTAKES]


# Trials

def made_trial(fitted: list[Run], unseen: list[Run], label: str) -> Trial:
    shown = [{key: value for key, value in run.items() if key != "measured"} for run in unseen]
    measured = [run["measured"] for run in unseen]
    before = mean_error((step_of(run, 1.0, lambda run: 0.0) for run in unseen), measured)
    par = max(PAR * errors_of(fitted, unseen)[0][0], SMALLEST)
    return Trial([[fitted, shown]], label, hidden={"measured": measured, "before": before, "par": par})


@lru_cache(maxsize=256)
def drawn_trial(seed: int) -> Trial:
    """Runs to fit on have one chunk a stage; of those to be said many have more."""
    best, clear = None, -1.0
    for number in range(TRIES):
        drawn = drawn_runs(random.Random(f"{seed} {number}"))
        best, clear = max((best, clear), (drawn, clearness(drawn)), key=lambda it: it[1])
        if clear == 1:
            break
    return made_trial(*best, f"{len(best[0])} published runs to fit on, {len(best[1])} unseen, draw {seed}")


def clearness(drawn: tuple[list[Run], list[Run]]) -> float:
    """At least 1 where sound ways agree and mistakes do not."""
    (reference, *sound), mistakes = errors_of(*drawn)
    return min(1.0, AGREE * reference / max(sound), min(mistakes) / (MISTAKEN * reference))


def drawn_runs(source: random.Random) -> tuple[list[Run], list[Run]]:
    rate = source.choice(RATES)
    kinds = [[run for run in dense_runs() if test(run.job)] for test in (
        lambda job: job.layout.pp == 1, lambda job: job.layout.pp > 1 == job.v, lambda job: job.v > 1)]
    plain, piped, chunked = (source.sample(runs, most) for runs, most in zip(kinds, (14, 34, 14)))
    fitted, unseen = plain[:8] + piped[:20], plain[8:] + piped[20:] + chunked
    source.shuffle(unseen)
    return [shown_run(run, rate) for run in fitted], [shown_run(run, rate) for run in unseen]


def shown_run(run: Published, rate: float) -> Run:
    """The run as a planner says it that knows no bubble, and whose products are `rate` times too fast."""
    seconds = {cause: run.seconds[cause] for cause in SHOWN}
    return seconds | {"matmul": run.seconds["matmul"] / rate, "pp_messages": run.seconds["pp"],
                      "pp": run.job.layout.pp, "micro_batches": run.job.num_microbatches, "v": run.job.v,
                      "measured": run.measured}
