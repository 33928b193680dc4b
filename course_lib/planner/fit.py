"""Fit the constants: python -m course_lib.planner.fit [FILE.json] prints them, each with its uncertainty.

Only rows marked "calibration" are used. The logarithms of the constants are moved from their priors so that

    sum over rows of 2 log(1 + r^2 / 2)  +  sum over constants of (log(value / prior) / uncertainty)^2

becomes least, r = log(predicted / published) / 5 %. The logarithm lets a row that nothing explains pull less and less
(Student's t), and the second sum keeps a constant where it was when no row knows better (planner.least_squares).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, expm1, log

from course_lib.planner.constants import ACTIVATIONS_EAGER, CONSTANTS, Constants
from course_lib.planner.guesses import table_of_guesses
from course_lib.planner.job import Job
from course_lib.planner.least_squares import ROW_ERROR, most_likely, objective
from course_lib.planner.rates import Rates, rates_of_job
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row, peak_of_row, read_rows
from course_lib.planner.step import step_seconds

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
