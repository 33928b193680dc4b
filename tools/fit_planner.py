"""The planner's constants and errors, for its authors: python -m tools.fit_planner [FILE.json ...].

Fits on rows marked "calibration" and prints each constant, with --worth also how much worse rows that it was not fitted
on would be without it. Prints errors by kind of run and by group: of rows that were fitted, that were not, and, with
--leave-out, of each source by constants that were fitted without it; median, nine of ten, worst, and how many published
values lie in the range. --write puts constants and ranges into course_lib/planner/constants.py.

Unknowns theta, the logarithms of constants over their priors, begin at 0 with standard deviations sigma; rows have
residuals r, log(predicted / published) in units of what a good row is missed by (5 %). Gauss-Newton in plain Python
makes this least; the logarithm lets a row that nothing explains pull less and less (Student's t):

    sum over rows of 2 log(1 + r^2 / 2)  +  sum over unknowns of (theta / sigma)^2
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, log, log1p, sqrt
from pathlib import Path

from course_lib.facts import published_rows
from course_lib.planner import constants as given
from course_lib.planner.compare import balanced_accuracy, compare
from course_lib.planner.constants import ACTIVATIONS_EAGER, CONSTANTS, FITTED, Constants
from course_lib.planner.estimate import estimate_job, step_seconds
from course_lib.planner.job import Job, kinds_of, rates_of_job
from course_lib.planner.machine import solve
from course_lib.planner.rows import FITS, Row, job_of_row, peak_of_row, published_seconds, read_rows

ROW_ERROR = 0.05  # what a good row is expected to miss by: publishing rounds, runs differ
STEPS, DIFFERENCE = 25, 1e-3
FARTHEST = 3.0  # standard deviations
FEWEST_FOR_RANGE = 5  # runs of a kind
NEAR = 0.01  # fits of which only the errors are looked at end sooner
# Without a constant: what takes its place, a value or another constant. All others of CONSTANTS are left at the prior.
WITHOUT: dict[str, float | str] = {
    "matmul_a100": "matmul_h100", "matmul_b200": "matmul_h100", "flash3": "flash2", "passes_eager": "passes_fused",
    "launch_eager_s": 1e-9, "launch_deepspeed_s": "launch_eager_s", "drag": 1e-9, "experts_eager": 1.0,
    "row_passes": "passes_fused", "tp_hidden": 1e-9, "spread": 1e-9, "step_s": 1e-9}


# The fit

@dataclass(frozen=True)
class Fitted:
    """What a fit gives: the constants, and one standard error of each as a share of it."""

    constants: Constants
    uncertainty: dict[str, float]




def log_ratio(row: Row, job: Job, constants: Constants) -> float:
    """log of predicted over published seconds."""
    return log(sum(step_seconds(job, rates_of_job(job, constants)).values()) / published_seconds(row, job))


def fit(rows: Sequence[Row], without: str = "", tolerance: float = 1e-9) -> Fitted:
    """The constants for `rows`, of which only timed ones marked "calibration" are looked at. `without`: a constant to
    do without. It ends when a step gains less than `tolerance`.
    """
    rows = [row for row in rows if row["split"] == "calibration" and row["metric"] != FITS]
    jobs = [job_of_row(row) for row in rows]
    free = [c for c in CONSTANTS if c.prior_uncertainty and c.name != without]
    sigma, n = [c.prior_uncertainty for c in free], range(len(free))

    def at(theta: Sequence[float]) -> Constants:
        values = {c.name: c.prior for c in CONSTANTS} | {c.name: c.prior * exp(t) for c, t in zip(free, theta)}
        if without:
            other = WITHOUT.get(without, values[without])
            values[without] = values[other] if isinstance(other, str) else other
        return Constants(**values)

    def residuals(theta: Sequence[float]) -> list[float]:
        constants = at(theta)
        return [log_ratio(row, job, constants) / ROW_ERROR for row, job in zip(rows, jobs)]

    theta = [0.0] * len(free)
    r = residuals(theta)
    best, curvature = objective(r, theta, sigma), [[(i == j) / sigma[i] ** 2 for j in n] for i in n]
    for _ in range(STEPS):
        slopes = [[(moved - now) / DIFFERENCE for moved, now in zip(
            residuals([t + DIFFERENCE * (i == j) for j, t in enumerate(theta)]), r)] for i in n]
        weighted = [[slope / (1 + now * now / 2) for slope, now in zip(of_one, r)] for of_one in slopes]
        curvature = [[sum(a * b for a, b in zip(weighted[i], slopes[j])) + (i == j) / sigma[i] ** 2 for j in n]
                     for i in n]
        step = solve(curvature, [sum(a * b for a, b in zip(weighted[i], r)) + theta[i] / sigma[i] ** 2 for i in n])
        # A whole step of a curved problem may overshoot: it is halved until the objective falls.
        for shortened in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16):
            tried = [min(max(t - shortened * d, -FARTHEST * s), FARTHEST * s) for t, d, s in zip(theta, step, sigma)]
            r_tried = residuals(tried)
            if (now := objective(r_tried, tried, sigma)) < best - tolerance:
                theta, r, best = tried, r_tried, now
                break
        else:
            break
    errors = [sqrt(solve(curvature, [float(i == j) for j in n])[i]) for i in n]
    return Fitted(at(theta), dict.fromkeys((c.name for c in CONSTANTS), 0.0) | {
        c.name: error for c, error in zip(free, errors)})


def objective(residuals: Sequence[float], theta: Sequence[float], sigma: Sequence[float]) -> float:
    """What is to be smallest: squares of residuals, large ones damped, and of how far theta is from its priors."""
    return sum(2 * log1p(r * r / 2) for r in residuals) + sum((t / s) ** 2 for t, s in zip(theta, sigma))


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
    tried = {hundredths / 100: objective(
        [log((rest + hundredths / 100 * kept) / peak) / ROW_ERROR for rest, kept, peak in parts],
        [log(hundredths / 100 / prior)], [known]) for hundredths in range(80, 200)}
    best = min(tried, key=lambda value: tried[value])
    likely = [value for value, of_it in tried.items() if of_it < tried[best] + 1]  # one standard deviation
    return best, (max(likely) - min(likely)) / 2 / best


# Sources left out

def source_of(row: Row) -> str:
    """Who published it: a repository, whatever its commit and file, or an arXiv number. What stands before the first
    comma, blank or @ of its source.
    """
    words = row["source"].split()
    return " ".join(words[:2]).rstrip(",") if words[0] in ("arXiv", "Ultra-Scale") else (
        words[0].rstrip(",").split("@")[0])


@lru_cache(maxsize=64)
def constants_without(source: str) -> Constants:
    """Fitted on the calibration rows of all others."""
    rows = published_rows("calibration")
    others = [row for row in rows if source_of(row) != source]
    return FITTED if len(others) == len(rows) else fit(others, tolerance=NEAR).constants


@lru_cache(maxsize=2)
def unseen_ratios(fitted_too: bool = False) -> tuple[tuple[Row, Job, float], ...]:
    """(row, job, log of predicted over published) of timed rows, by constants that were fitted without their source."""
    rows = [row for row in published_rows(None if fitted_too else "visible") if row["metric"] != FITS]
    return tuple((row, job, log_ratio(row, job, constants_without(source_of(row))))
                 for row, job in ((row, job_of_row(row)) for row in rows))


@lru_cache(maxsize=64)
def ranges(leave: str = "") -> dict[str, float]:
    """RANGES: of each kind with enough runs, what two thirds of them are not missed by. Each run counts twice: as the
    committed constants see it, and as those see it that were fitted without its source. `leave`: a source that does
    not count.
    """
    found: dict[str, list[float]] = {}
    for row, job, ratio in unseen_ratios():
        for kind in kinds_of(job) if source_of(row) != leave else ():
            found.setdefault(kind, []).extend(exp(abs(each)) - 1 for each in (ratio, log_ratio(row, job, FITTED)))
    # Rounded up, so that the run that it is taken from lies in it.
    return {kind: ceil(1000 * sorted(of)[round(2 * len(of) / 3) - 1]) / 1000
            for kind, of in found.items() if len(of) >= 2 * FEWEST_FOR_RANGE}


# Tables

@dataclass(frozen=True)
class Measured:
    """A row, the planner's step over the published one, and whether that lies in the range (None: there is none)."""

    row: Row
    ratio: float
    inside: bool | None

    @property
    def error(self) -> float:
        """Of the row's own metric, relative: a throughput's is that of the inverse."""
        return self.ratio - 1 if self.row["metric"].startswith("step time") else 1 / self.ratio - 1


def measure(row: Row, constants: Constants = FITTED, spreads: dict[str, float] = given.RANGES) -> Measured:
    """The row beside the planner's estimate. `spreads`: in the place of RANGES."""
    job = job_of_row(row)
    ratio = exp(log_ratio(row, job, constants))
    spread = next((spreads[kind] for kind in kinds_of(job) if kind in spreads), None)
    return Measured(row, ratio, None if spread is None else 1 / (1 + spread) <= ratio <= 1 + spread)


def kinds_of_row(row: Row) -> list[str]:
    """All; dense or with experts; what else is special; its generation of devices."""
    experts, job = (row.get("experts") or 1) > 1, job_of_row(row)
    found = ["all", "experts" if experts else "dense"]
    if row["cp"] > 1:
        found.append("context")
    if row.get("precision", "bf16") not in ("bf16", "fp16"):
        found.append("8 and 4 bits")
    return [*found, f"{'experts' if experts else 'dense'}, {job.cluster.device.generation}"]


def columns(found: Sequence[Measured]) -> str:
    """Runs, median, nine of ten, worst, and the share in range."""
    if not found:
        return f"{'':41s}"
    errors = sorted(abs(each.error) for each in found)
    told = [each.inside for each in found if each.inside is not None]
    share = f"{sum(told) / len(told):5.0%}" if told else "    -"
    return (f"{len(errors):4d} {errors[len(errors) // 2]:7.1%} {errors[-(-9 * len(errors) // 10) - 1]:7.1%} "
            f"{errors[-1]:7.1%} {share} of {len(told):3d}")


def table(rows: Iterable[Row], leave_out: bool) -> str:
    """The errors as text."""
    timed = [row for row in rows if row["metric"] != FITS]
    found = {row["id"]: measure(row) for row in timed}
    unseen = {row["id"]: measure(row, constants_without(source_of(row)), ranges(source_of(row))) for row in timed
              } if leave_out else {}
    groups: dict[str, list[Row]] = {}
    for row in timed:
        for name in [*kinds_of_row(row), f"  {row['group']}"]:
            groups.setdefault(name, []).append(row)
    head = f"{'runs':>4s} {'median':>7s} {'9 of 10':>7s} {'worst':>7s} {'in range':>12s}"
    lines = [f"{'':22s} | {'not fitted':42s} | {'fitted':42s} | its source left out",
             f"{'':22s} | {head} | {head} | {head}"]
    for name, of in sorted(groups.items(), key=lambda each: (each[0].startswith(" "), each[0] != "all", each[0])):
        parts = [[found[row["id"]] for row in of if (row["split"] == "calibration") == fitted]
                 for fitted in (False, True)] + [[unseen[row["id"]] for row in of] if unseen else []]
        lines.append(" | ".join([f"{name:22s}", *map(columns, parts)]).rstrip())
    return "\n".join(lines)


def fits_table(rows: Sequence[Row]) -> str:
    """How often what fits is told from what does not."""
    told = [row for row in rows if row["metric"] == FITS]
    ran = [row["id"] for row in rows if row["metric"] != FITS and not estimate_job(job_of_row(row)).fits]
    return (f"fits or not, {len(told)} runs: {balanced_accuracy(compare(told)):.1%} balanced; "
            f"ran, but said not to fit: {len(ran)} {' '.join(ran)}") if told else ""


def worth(rows: Sequence[Row], name: str = "") -> dict[str, float]:
    """Mean |log| of predicted over published, dense and with experts, of rows that are not fitted, without a constant.
    """
    constants = fit(rows, name, NEAR).constants
    found: dict[str, list[float]] = {"dense": [], "experts": []}
    for row in rows:
        if row["split"] != "calibration" and row["metric"] != FITS:
            found[kinds_of_row(row)[1]].append(abs(log_ratio(row, job_of_row(row), constants)))
    return {kind: sum(of) / len(of) for kind, of in found.items()}


def table_of_constants(fitted: Fitted, rows: Sequence[Row] = ()) -> str:
    """Each constant: value, uncertainty, prior; and, where `rows` are given, its worth."""
    lines, whole = [], worth(rows) if rows else {}
    if whole:
        lines.append(f"with all: {', '.join(f'{kind} {error:.2%}' for kind, error in whole.items())}")
    for c in CONSTANTS:
        told = f"+- {fitted.uncertainty[c.name]:.0%}" if c.prior_uncertainty else "not fitted"
        lost = "" if not whole else "   without it: " + ", ".join(
            f"{kind} {error - whole[kind]:+.2%}" for kind, error in worth(rows, c.name).items())
        value = getattr(fitted.constants, c.name)
        lines.append(f"{c.name:19s} {value:<9.4g} {told:10s}  prior {c.prior:<7g} {c.unit:14s}{lost}".rstrip())
    return "\n".join(lines)


def write(fitted: Fitted) -> None:
    """Puts the constants into constants.py; run again for the ranges, which depend on them."""
    path = Path(given.__file__)
    text = path.read_text(encoding="utf-8")
    for name, uncertainty in fitted.uncertainty.items():
        value = f'Constant("{name}", {getattr(fitted.constants, name):.4g}, {uncertainty:.2f},'
        text = re.sub(rf'Constant\("{name}", [\d.e+-]+, [\d.]+,', value, text)
    lines = "".join(f'    "{kind}": {spread:.3f},\n' for kind, spread in sorted(ranges().items()))
    text = re.sub(r"(RANGES: dict\[str, float\] = \{\n).*?(\n?\})", lambda found: found[1] + lines.rstrip("\n") + "\n}",
                  text, count=1, flags=re.S)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="rows in the format of facts/published.json; the course's own if none")
    parser.add_argument("--leave-out", action="store_true", help="fit without each source, and predict its rows")
    parser.add_argument("--worth", action="store_true", help="fit without each constant (a minute)")
    parser.add_argument("--write", action="store_true", help="put constants and ranges into constants.py")
    options = parser.parse_args()
    own = published_rows()
    fitted = fit(own)
    if options.write:
        write(fitted)
    print(table_of_constants(fitted, own if options.worth else ()))
    for file in options.files or [None]:
        rows, _ = read_rows(file)
        print(file or "facts/published.json", table(rows, options.leave_out), fits_table(rows), sep="\n")


if __name__ == "__main__":
    main()
