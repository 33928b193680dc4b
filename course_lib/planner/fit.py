"""Fit the constants: python -m course_lib.planner.fit [FILE.json] prints them, each with its uncertainty.

Only rows marked "calibration" are used. Unknowns theta, the logarithms of constants over their priors, begin at 0 with
standard deviations sigma; rows have residuals r, log(predicted / published) in units of what a good row is missed by
(5 %). Gauss-Newton in plain Python, deterministic, makes this least:

    sum over rows of 2 log(1 + r^2 / 2)  +  sum over unknowns of (theta / sigma)^2

The logarithm lets a row that nothing explains pull less and less (Student's t). The second sum keeps a constant where
it was when no row knows better. Derivatives are differences. Standard deviations are those of the linear problem at the
end.

An error beside an advice is honest only if a reader can also see what the model was given. A constant that ends where
it began, as unsure as before, is its prior: whoever calls it fitted says too much. The other numbers (ASSUMED) were
never up for fitting; most follow from what is computed, some are guesses. A test asks that each of them is here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, expm1, log, log1p, sqrt

from course_lib.costs.network import FEWEST_IN_SWITCH, TREE_ACROSS_S, TREE_INSIDE_S
from course_lib.planner import constants as given
from course_lib.planner import layer, memory
from course_lib.planner.cluster import TORUS_STEP_S, Rates
from course_lib.planner.constants import ACTIVATIONS_EAGER, CONSTANTS, GUESS, Constant, Constants
from course_lib.planner.estimate import MATRICES, STATE_PASSES, UNEXPLAINED, step_seconds
from course_lib.planner.job import Job, rates_of_job
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row, peak_of_row, read_rows

ROW_ERROR = 0.05  # what a good row is expected to miss by: publishing rounds, runs differ
STEPS, DIFFERENCE = 25, 1e-3
FARTHEST = 3.0  # standard deviations


def solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """x of matrix x = right, for a symmetric matrix whose x' matrix x is above 0: Gauss, without pivots."""
    rows = [[*row, value] for row, value in zip(matrix, right)]
    for k, pivot in enumerate(rows):
        for row in rows[k + 1:]:
            share = row[k] / pivot[k]
            row[k:] = [value - share * above for value, above in zip(row[k:], pivot[k:])]
    x = [0.0] * len(rows)
    for k in reversed(range(len(rows))):
        x[k] = (rows[k][-1] - sum(a * b for a, b in zip(rows[k][k + 1:-1], x[k + 1:]))) / rows[k][k]
    return x


def objective(residuals: Sequence[float], theta: Sequence[float], sigma: Sequence[float]) -> float:
    """What is to be smallest: squares of residuals, large ones damped, and of how far theta is from its priors."""
    return sum(2 * log1p(r * r / 2) for r in residuals) + sum((t / s) ** 2 for t, s in zip(theta, sigma))


def most_likely(residuals_at: Callable[[Sequence[float]], list[float]], sigma: Sequence[float],
                tolerance: float) -> tuple[list[float], list[float]]:
    """(theta, its standard deviations) where the objective is least, from theta = 0 on."""
    theta, n = [0.0] * len(sigma), range(len(sigma))
    r = residuals_at(theta)
    best, curvature = objective(r, theta, sigma), [[(i == j) / sigma[i] ** 2 for j in n] for i in n]
    for _ in range(STEPS):
        slopes = [[(moved - now) / DIFFERENCE for moved, now in zip(
            residuals_at([t + DIFFERENCE * (i == j) for j, t in enumerate(theta)]), r)] for i in n]
        weighted = [[slope / (1 + now * now / 2) for slope, now in zip(of_one, r)] for of_one in slopes]
        curvature = [[sum(a * b for a, b in zip(weighted[i], slopes[j])) + (i == j) / sigma[i] ** 2 for j in n]
                     for i in n]
        step = solve(curvature, [sum(a * b for a, b in zip(weighted[i], r)) + theta[i] / sigma[i] ** 2 for i in n])
        # A whole step of a curved problem may overshoot: it is halved until the objective falls.
        for shortened in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16):
            tried = [min(max(t - shortened * d, -FARTHEST * s), FARTHEST * s) for t, d, s in zip(theta, step, sigma)]
            r_tried = residuals_at(tried)
            if (now := objective(r_tried, tried, sigma)) < best - tolerance:
                theta, r, best = tried, r_tried, now
                break
        else:
            break
    return theta, [sqrt(solve(curvature, [float(i == j) for j in n])[i]) for i in n]


MOVED = 0.02  # of its value: less is not moved
SURER = 0.9  # of its prior uncertainty: more is as unsure as before


@dataclass(frozen=True)
class Assumed:
    """A number that is not fitted. `name`: as in the code, or where it stands there."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


DERIVED = "follows from what is computed"
ASSUMED: tuple[Assumed, ...] = (
    Assumed("BACKWARD_OF_FLASH", layer.BACKWARD_OF_FLASH, "times", "products of attention backward over forward",
            DERIVED),
    Assumed("LOGIT_BYTES", given.LOGIT_BYTES, "bytes", "of a logit at the loss", DERIVED),
    Assumed("LOGIT_FUSED", given.LOGIT_FUSED, "bytes", "the same, where one kernel makes loss and gradient", DERIVED),
    Assumed("LOGIT_NARROW", given.LOGIT_NARROW, "bytes", "the same, of a loss in 16 bits", DERIVED),
    Assumed("LOGIT_CUT", given.LOGIT_CUT, "bytes", "the same, cut over ranks by PyTorch, kernel by kernel", DERIVED),
    Assumed("GATHERED_LAYERS", memory.GATHERED_LAYERS, "layers", "whole at a time under ZeRO-3", DERIVED),
    Assumed("head's gathers under ZeRO", 0.75, "share", "of a gather of both ends' matrices that nothing hides", GUESS),
    Assumed("gather before forward", 0.5, "share", "of a backward pass that hides ZeRO-1's gather of weights", DERIVED),
    Assumed("MATRICES", MATRICES, "messages", "of a layer, where each matrix is sent on its own", DERIVED),
    Assumed("LAUNCHED_BY_ATTENTION", layer.LAUNCHED_BY_ATTENTION, "share", "of a layer's operations", GUESS),
    Assumed("LAUNCHED_BY_EXPERTS", layer.LAUNCHED_BY_EXPERTS, "share", "of a layer's operations, more with experts",
            GUESS),
    Assumed("ROUTER_BYTES", layer.ROUTER_BYTES, "bytes", "of a number in the router", DERIVED),
    Assumed("ROUTER_PASSES", layer.ROUTER_PASSES, "passes", "over the router's scores", "counted by hand"),
    Assumed("STATE_PASSES", STATE_PASSES, "passes", "over what the optimiser reads and writes", GUESS),
    Assumed("OTHER_BYTES", given.OTHER_BYTES, "bytes", "workspaces and buffers of libraries", GUESS),
    Assumed("TREE_INSIDE_S", TREE_INSIDE_S, "s", "a step of a tree in a node", "NCCL's own table (facts)"),
    Assumed("TREE_ACROSS_S", TREE_ACROSS_S, "s", "a step of a tree from node to node", "NCCL's own table (facts)"),
    Assumed("FEWEST_IN_SWITCH", FEWEST_IN_SWITCH, "ranks", "for which a switch adds up", "8 H200 measured (facts)"),
    Assumed("TORUS_STEP_S", TORUS_STEP_S, "s", "a step of a ring between TPUs", GUESS),
    Assumed("message_bytes, others", given.FSDP.message_bytes, "bytes", "of gradients reduced together",
            "PyTorch DDP's default"),
    Assumed("message_bytes, Megatron-Core", given.MEGATRON_CORE.message_bytes, "bytes", "the same", GUESS),
    Assumed("message_bytes, DeepSpeed", given.MEGATRON_DEEPSPEED.message_bytes, "bytes", "the same",
            "DeepSpeed's default reduce_bucket_size"),
    Assumed("ROW_ERROR", ROW_ERROR, "share", "that a good row is expected to be missed by, in the fit", GUESS),
    Assumed("UNEXPLAINED", UNEXPLAINED, "share", "that stays in an estimate's range when all constants are known",
            "what fitted rows are missed by: too small for others"),
)


def guesses() -> tuple[Constant, ...]:
    """The constants that are their priors still: no row moved them, and none made them surer."""
    return tuple(c for c in CONSTANTS if abs(c.value / c.prior - 1) < MOVED
                 and c.uncertainty > SURER * c.prior_uncertainty)


def table_of_guesses() -> str:
    """Both kinds of guesses as text, a line each."""
    lines = ["Constants that no row moves:"]
    lines += [f"    {c.name:30s} {c.value:<10.4g} {c.unit:14s} {c.source}" for c in guesses()]
    lines += ["Numbers that are not fitted:"]
    return "\n".join(lines + [f"    {a.name:30s} {a.value:<10.4g} {a.unit:14s} {a.source}" for a in ASSUMED])


# What a planner might leave out: a cause of a step's seconds, or that small products are slower ("sizes").
EFFECTS = ("tp", "memory", "sizes", "bubble", "launch", "dp", "pp", "optimiser")


@dataclass(frozen=True)
class Fitted:
    """What a fit gives: the constants, one standard error of each as a share of it, and what is still wrong by row."""

    constants: Constants
    uncertainty: dict[str, float]
    errors: dict[str, float]  # log(predicted / published) by row


def calibration(rows: Sequence[Row]) -> list[Row]:
    """The rows that constants may be fitted on: those marked so whose metric is a time or a rate."""
    return [row for row in rows if row["split"] == "calibration" and row["metric"] != FITS]


def seconds_without(job: Job, constants: Constants, effect: str = "") -> float:
    """Seconds of a step from which one of EFFECTS is left out; "" leaves out none."""
    rates = rates_of_job(job, constants)
    if effect == "sizes":
        rates = without_sizes(rates)
    seconds = step_seconds(job, rates)
    return sum(s for cause, s in seconds.items() if cause != effect)


@lru_cache(maxsize=256)
def without_sizes(rates: Rates) -> Rates:
    """Products of every size as fast as large ones."""
    return replace(rates, operand_bytes_per_s=1e30)


def log_errors(rows: Sequence[Row], jobs: Sequence[Job], constants: Constants, without: str = "") -> list[float]:
    """log(predicted / published) of each row; `without`: a cause that is left out of the prediction."""
    return [log(in_metric(row, job, seconds_without(job, constants, without)) / row["value"])
            for row, job in zip(rows, jobs)]


def at(theta: Sequence[float]) -> Constants:
    """The constants at a point of the fit: theta is the log of each over its prior."""
    return Constants(**{c.name: c.prior * exp(t) for c, t in zip(CONSTANTS, theta)})


def fit(rows: Sequence[Row], without: str = "", tolerance: float = 1e-9) -> Fitted:
    """The constants for `rows`, of which only those marked "calibration" are looked at. `without`: one of EFFECTS that
    the model is to do without. It ends when a step gains less than `tolerance`.
    """
    if without not in ("", *EFFECTS):
        raise ValueError(f"without={without!r}: expected one of {', '.join(EFFECTS)}")
    rows = calibration(rows)
    jobs = [job_of_row(row) for row in rows]

    def residuals_at(theta: Sequence[float]) -> list[float]:
        return [error / ROW_ERROR for error in log_errors(rows, jobs, at(theta), without)]

    theta, spread = most_likely(residuals_at, [c.prior_uncertainty for c in CONSTANTS], tolerance)
    return Fitted(at(theta), dict(zip((c.name for c in CONSTANTS), spread)),
                  dict(zip((row["id"] for row in rows), log_errors(rows, jobs, at(theta), without))))


def fit_activations(rows: Sequence[Row]) -> tuple[float, float]:
    """(value, uncertainty) of ACTIVATIONS_EAGER from the measured peaks of calibration rows, in the same way. By
    trying values: it has one dimension.
    """
    found = [(peak_of_row(row, job), row["peak_gb"] * 2**30) for row, job in (
        (row, job_of_row(row)) for row in rows if row["split"] == "calibration" and row.get("peak_gb"))
        if job.software.activations_eager]
    prior, known = ACTIVATIONS_EAGER.prior, ACTIVATIONS_EAGER.prior_uncertainty
    parts = [(sum(memory.values()) - memory["activations"], memory["activations"] / ACTIVATIONS_EAGER.value, peak)
             for memory, peak in found]

    def unlikely(value: float) -> float:
        return objective([log((rest + value * kept) / peak) / ROW_ERROR for rest, kept, peak in parts],
                         [log(value / prior)], [known])

    tried = {hundredths / 100: unlikely(hundredths / 100) for hundredths in range(80, 200)}
    best = min(tried, key=lambda value: tried[value])
    likely = [value for value, of_it in tried.items() if of_it < tried[best] + 1]  # one standard deviation
    return best, (max(likely) - min(likely)) / 2 / best


def main() -> None:
    """The command: fit, and print constants, uncertainties and errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="rows in the format of facts/published.json; the course's own if none")
    rows, _ = read_rows(parser.parse_args().file)
    fitted = fit(rows)
    for c in CONSTANTS:
        print(f"{c.name:20s} {getattr(fitted.constants, c.name):<12.4g} +- {fitted.uncertainty[c.name]:.0%}"
              f"   prior {c.prior:g} +- {c.prior_uncertainty:.0%} {c.unit}")
    print("{:20s} {:<12.4g} +- {:.0%}".format("activations_eager", *fit_activations(rows)))
    for name, error in fitted.errors.items():
        print(f"    {name:28s} {expm1(error):+.1%}")
    print(table_of_guesses())


if __name__ == "__main__":
    main()
