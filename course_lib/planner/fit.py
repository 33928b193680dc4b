"""Fit the constants: python -m course_lib.planner.fit [FILE.json] prints them, each with its uncertainty.

Only rows marked "calibration" are used. The logarithms of the constants are moved from their priors so that

    sum over rows of 2 log(1 + r^2 / 2)  +  sum over constants of (log(value / prior) / uncertainty)^2

becomes least, r = log(predicted / published) / 5 %. The logarithm lets a row that nothing explains pull less and less
(Student's t), and the second sum keeps a constant where it was when no row knows better. Gauss-Newton by weights, with
derivatives from differences; deterministic. Uncertainties are those of the linear problem at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from course_lib.facts import published_rows
from course_lib.planner.constants import ACTIVATIONS_EAGER, CONSTANTS, Constants
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job
from course_lib.planner.rates import Rates, rates_of
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row
from course_lib.planner.step import step_seconds

ROW_ERROR = 0.05  # what a good row is expected to miss by: publishing rounds, runs differ
# What a planner might leave out: a cause of a step's seconds, or that small products are slower ("sizes").
EFFECTS = ("tp", "memory", "sizes", "bubble", "launch", "dp", "pp", "optimiser")
STEPS, DIFFERENCE = 25, 1e-3
FARTHEST = 3.0  # prior uncertainties


@dataclass(frozen=True)
class Fitted:
    constants: Constants
    uncertainty: dict[str, float]
    errors: dict[str, float]  # log(predicted / published) by row


def calibration(rows: Sequence[Row]) -> list[Row]:
    """Those that constants may be fitted on, and that are times."""
    return [row for row in rows if row["split"] == "calibration" and row["metric"] != FITS]


def seconds_without(job: Job, constants: Constants, effect: str = "") -> float:
    """Of a step where one of EFFECTS is left out; "" for none."""
    rates = rates_of(job.cluster, job.software, job.precision, constants)
    if effect == "sizes":
        rates = without_sizes(rates)
    seconds = step_seconds(job, rates)
    return sum(s for cause, s in seconds.items() if cause != effect)


@lru_cache(maxsize=256)
def without_sizes(rates: Rates) -> Rates:
    """Products of every size as fast as large ones."""
    return replace(rates, operand_bytes_per_s=1e30)


def log_errors(rows: Sequence[Row], jobs: Sequence[Job], constants: Constants, without: str = "") -> np.ndarray:
    return np.array([np.log(in_metric(row, job, seconds_without(job, constants, without)) / row["value"])
                     for row, job in zip(rows, jobs)])


def at(theta: np.ndarray) -> Constants:
    return Constants(**{c.name: c.prior * float(np.exp(t)) for c, t in zip(CONSTANTS, theta)})


def fit(rows: Sequence[Row], without: str = "", tolerance: float = 1e-9) -> Fitted:
    """The constants for `rows`, of which only those marked "calibration" are looked at. `without`: one of EFFECTS that
    the model is to do without. It ends when a step gains less than `tolerance`.
    """
    if without not in ("", *EFFECTS):
        raise ValueError(f"without={without!r}: expected one of {', '.join(EFFECTS)}")
    rows = calibration(rows)
    jobs = [job_of_row(row) for row in rows]
    sigma = np.array([c.prior_uncertainty for c in CONSTANTS])

    def residuals(theta: np.ndarray) -> np.ndarray:
        return log_errors(rows, jobs, at(theta), without) / ROW_ERROR

    def objective(theta: np.ndarray) -> float:
        r = residuals(theta)
        return float(np.sum(2 * np.log1p(r * r / 2)) + np.sum((theta / sigma) ** 2))

    theta = np.zeros(len(sigma))
    best, curvature = objective(theta), np.diag(1 / sigma**2)
    for _ in range(STEPS):
        r = residuals(theta)
        slopes = np.stack([(residuals(theta + DIFFERENCE * unit) - r) / DIFFERENCE for unit in np.eye(len(sigma))], 1)
        weight = 1 / (1 + r * r / 2)
        curvature = slopes.T @ (weight[:, None] * slopes) + np.diag(1 / sigma**2)
        step = np.linalg.solve(curvature, slopes.T @ (weight * r) + theta / sigma**2)
        for shortened in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16):
            tried = np.clip(theta - shortened * step, -FARTHEST * sigma, FARTHEST * sigma)
            if (now := objective(tried)) < best - tolerance:
                theta, best = tried, now
                break
        else:
            break
    spread = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return Fitted(at(theta), dict(zip((c.name for c in CONSTANTS), map(float, spread))),
                  dict(zip((row["id"] for row in rows), map(float, log_errors(rows, jobs, at(theta), without)))))


def fit_activations(rows: Sequence[Row]) -> tuple[float, float]:
    """(value, uncertainty) of ACTIVATIONS_EAGER from the measured peaks of calibration rows, in the same way. By
    trying values: it has one dimension.
    """
    measured = [(job_of_row(row), row["peak_gb"] * 2**30) for row in rows
                if row["split"] == "calibration" and row.get("peak_gb")]
    held = [(estimate_job(job).memory, peak) for job, peak in measured if job.software.activations_eager]
    prior, known = ACTIVATIONS_EAGER.prior, ACTIVATIONS_EAGER.prior_uncertainty

    def objective(value: float) -> float:
        others = [(sum(memory.values()) - memory["activations"], memory["activations"] / ACTIVATIONS_EAGER.value, peak)
                  for memory, peak in held]
        r = [np.log((rest + value * kept) / peak) / ROW_ERROR for rest, kept, peak in others]
        return sum(2 * np.log1p(each**2 / 2) for each in r) + (np.log(value / prior) / known) ** 2

    grid = np.round(np.arange(1.0, 2.0, 0.01), 2)
    values = np.array([objective(value) for value in grid])
    likely = grid[values < values.min() + 1]  # one standard deviation
    best = float(grid[values.argmin()])
    return best, float((likely.max() - likely.min()) / 2 / best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="rows in the format of facts/published.json; the course's own if none")
    given = parser.parse_args().file
    rows = published_rows() if given is None else json.loads(Path(given).read_text(encoding="utf-8"))["rows"]
    fitted = fit(rows)
    for c in CONSTANTS:
        print(f"{c.name:20s} {getattr(fitted.constants, c.name):<12.4g} +- {fitted.uncertainty[c.name]:.0%}"
              f"   prior {c.prior:g} +- {c.prior_uncertainty:.0%} {c.unit}")
    print("{:20s} {:<12.4g} +- {:.0%}".format("activations_eager", *fit_activations(rows)))
    for name, error in fitted.errors.items():
        print(f"    {name:28s} {np.expm1(error):+.1%}")


if __name__ == "__main__":
    main()
