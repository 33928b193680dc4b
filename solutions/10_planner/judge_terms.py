"""Chapter 10, errors of a planner: which term is wrong, and which is missing, on runs that were published.

Rows and estimates are those of course_lib.facts and course_lib.planner, computed when an exercise is asked for: nothing
here hangs on the planner's constants to the digit.

Exercise 10.7: which term of a planner is wrong, and by what factor, on runs that were published.

    a planner whose `cause` takes f times too long says     p = c f    of the c seconds that are right
    and a bubble that is longer by as much as the work is:  b (w + (f - 1) c) / w        w  matmul, memory, tp, launch
    error = mean of |ln(planned / measured)|

Right terms are those of course_lib.planner, measured steps those that were published (course_lib.facts, each row with
its source). Runs are drawn so that any other term, or another factor, leaves clearly more of the error.

Exercise 10.8: a term that is missing in a planner, and a rate that is wrong, judged on runs that were not fitted.

    step = (rate matmul + memory + tp + launch) (1 + (pp - 1)/(v m)) + pp_messages + dp + optimiser
    error = mean of |ln(step / measured)|

`rate` is to be fitted; runs to fit on have v = 1, of the unseen ones many have more. Which way it is fitted must not
decide: trials are drawn so that three sound ways agree, and bubbles of the two usual mistakes do not. Sources:
course_lib.facts, each row with its own; Narayanan et al. 2021, section 2.2, for the bubble.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, median
from typing import Any

from course_lib.facts import published_rows
from course_lib.grading.compare import describe, is_list_of
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.on_rank import values
from course_lib.grading.spent import Spent
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, job_of_row, published_seconds

# Causes of a step of a dense model; for the first four each stage waits at the pipeline's ends, which is the bubble.
WORK = ("matmul", "memory", "tp", "launch")
CAUSES = (*WORK, "pp", "bubble", "dp", "optimiser")


@dataclass(frozen=True)
class Published:
    """`seconds`: by cause, as the planner says. `measured`: of the step that was published."""

    job: Job
    seconds: dict[str, float]
    measured: float


@lru_cache(maxsize=1)
def dense_runs() -> tuple[Published, ...]:
    """The published runs of dense models under 1F1B, without context parallelism, with tp inside a node."""
    found = []
    for row in published_rows():
        if row["metric"] == FITS or (row.get("experts") or 1) > 1 or row["cp"] > 1 or row["schedule"] != "1f1b":
            continue
        job = job_of_row(row)
        if job.layout.tp <= job.cluster.devices_per_node:
            seconds = estimate_job(job).seconds
            found.append(Published(job, {cause: seconds[cause] for cause in CAUSES}, published_seconds(row, job)))
    return tuple(found)


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


SHOWN = ("memory", "tp", "launch", "dp", "optimiser")  # causes that come as they are
BESIDE = ("pp_messages", "dp", "optimiser")  # no stage waits for these
RATES = (1.3, 1.5, 1.8, 2.2)  # times too fast the planner's products are
PAR = 1.3  # of the error that the formula above leaves
SMALLEST = 0.035  # par, where the formula leaves next to nothing
AGREE, MISTAKEN = 1.2, 1.4  # of that error: what other fits may have, and what mistakes have to have
FIT_TRIES = 60
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
    for number in range(FIT_TRIES):
        drawn = drawn_runs(random.Random(f"{seed} {number}"))
        best, clear = max((best, clear), (drawn, clearness_of_fit(drawn)), key=lambda it: it[1])
        if clear == 1:
            break
    return made_trial(*best, f"{len(best[0])} published runs to fit on, {len(best[1])} unseen, draw {seed}")


def clearness_of_fit(drawn: tuple[list[Run], list[Run]]) -> float:
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
