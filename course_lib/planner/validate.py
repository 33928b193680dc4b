"""Published against predicted: python -m course_lib.planner.validate [FILE.json], rows as in facts/published.json.

Beside the planner stands who guesses the same MFU for every run of a device (the median of its calibration rows), and
where a source repeated its runs, how far these lie apart: no model can be better. With --leave-out constants are fitted
anew for each source without its own rows, which is what a new reader's cluster would see.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from course_lib.costs.flops import step_flops
from course_lib.facts import published_rows, published_table
from course_lib.planner.constants import FITTED, Constants
from course_lib.planner.errors import MeasuredError, summary
from course_lib.planner.estimate import estimate_job
from course_lib.planner.fit import EFFECTS, fit, seconds_without
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row, published_seconds

# What has to lie within the rows that constants were fitted on, or a warning says so.
RANGED = ("hidden", "seq", "mbs", "gpus", "tp", "cp", "pp", "dp")


def predict(row: Row, constants: Constants = FITTED) -> float:
    """In the row's own metric; 1.0 or 0.0 for whether it fits.

    ValueError names an unknown device, metric or word, or what is missing. A row outside what the constants were fitted
    on is predicted with a warning.
    """
    job = job_of_row(row)
    outside = outside_of_calibration(row)
    if outside:
        warnings.warn(f"the row {row.get('id', '')!r} lies outside the calibrated range: {', '.join(outside)}",
                      stacklevel=2)
    return predicted(row, job, constants)


def predicted(row: Row, job: Job, constants: Constants = FITTED) -> float:
    found = estimate_job(job, constants)
    return float(found.fits) if row["metric"] == FITS else in_metric(row, job, found.step_s)


@lru_cache(maxsize=1)
def calibrated() -> tuple[dict[str, tuple[float, float]], frozenset[str]]:
    """Smallest and largest of RANGED, and the hardware, among calibration rows."""
    rows = published_rows("calibration")
    return ({name: (min(row[name] for row in rows), max(row[name] for row in rows)) for name in RANGED},
            frozenset(row["hw"].split(" ")[0] for row in rows))


def outside_of_calibration(row: Row) -> list[str]:
    ranges, hardware = calibrated()
    found = [f"{name}={row[name]} (fitted on {low} to {high})" for name, (low, high) in ranges.items()
             if not low <= row[name] <= high]
    return found + ([f"hw={row['hw']}"] if row["hw"].split(" ")[0] not in hardware else [])


@dataclass(frozen=True)
class Compared:
    """One row. `guess`: with a constant MFU; for the metric "fits" that all do."""

    row: Row
    predicted: float
    guess: float

    @property
    def error(self) -> float:
        return self.predicted / self.row["value"] - 1

    @property
    def guess_error(self) -> float:
        return self.guess / self.row["value"] - 1


def mfu_of(row: Row, job: Job) -> float:
    """What a published value says of the step's time, as MFU (attention in full)."""
    flops = step_flops(job.shape, job.global_batch, job.sequence_length)
    return flops / published_seconds(row, job) / row["gpus"]


@lru_cache(maxsize=1)
def constant_mfu() -> dict[str, float]:
    """FLOP/s of each device's median calibration row; of all where a device has none, as a share of the peak ("")."""
    found: dict[str, list[float]] = {"": []}
    for row in published_rows("calibration"):
        if row["metric"] != FITS:
            job = job_of_row(row)
            share = mfu_of(row, job) / job.cluster.peak_flops_per_s()
            found.setdefault(job.cluster.device.name, []).append(share)
            found[""].append(share)
    return {name: median(shares) for name, shares in found.items()}


def guess(row: Row, job: Job) -> float:
    if row["metric"] == FITS:
        return 1.0
    shares = constant_mfu()
    share = shares.get(job.cluster.device.name, shares[""])
    flops = step_flops(job.shape, job.global_batch, job.sequence_length)
    return in_metric(row, job, flops / row["gpus"] / (share * job.cluster.peak_flops_per_s()))


def compare(rows: Sequence[Row], constants: Constants = FITTED) -> list[Compared]:
    jobs = [job_of_row(row) for row in rows]
    return [Compared(row, predicted(row, job, constants), guess(row, job)) for row, job in zip(rows, jobs)]


def by_group(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for each in compared:
        groups.setdefault(each.row["group"], []).append(each)
    return groups


def balanced_accuracy(compared: Sequence[Compared]) -> float:
    """Of a group that fits or does not: the mean of the shares that are right among both."""
    shares = []
    for value in (1, 0):
        of_these = [each for each in compared if each.row["value"] == value]
        if of_these:
            shares.append(sum(each.predicted == value for each in of_these) / len(of_these))
    return sum(shares) / len(shares)


def group_errors(compared: Sequence[Compared]) -> dict[str, tuple[MeasuredError, MeasuredError]]:
    """(the planner's, the guess's) for every group of times."""
    return {name: (summary(name, [each.error for each in group]), summary(name, [each.guess_error for each in group]))
            for name, group in by_group(compared).items() if group[0].row["metric"] != FITS}


def spread_of(group: Sequence[Compared], noise: dict[str, dict]) -> float | None:
    """How far repeated runs lie apart, relative; None where nobody repeated them."""
    name = group[0].row["group"]
    if name in noise:
        return noise[name]["spread_percent"] / 100
    spreads = [each.row["spread_percent"] / 100 for each in group if "spread_percent" in each.row]
    return max(spreads) if spreads else None


def leave_one_source_out(rows: Sequence[Row]) -> list[Compared]:
    """Each source's rows, predicted with constants that were fitted without it."""
    found = []
    for source in dict.fromkeys(source_of(row) for row in rows):
        own = [row for row in rows if source_of(row) == source]
        constants = fit([row for row in published_rows() if source_of(row) != source]).constants if any(
            row["split"] == "calibration" for row in own) else FITTED
        found += compare(own, constants)
    return found


def leave_one_effect_out(rows: Sequence[Row]) -> dict[str, dict[str, MeasuredError]]:
    """The planner's errors by group where it does without an effect, its constants fitted so; "" for with all."""
    timed = [row for row in rows if row["metric"] != FITS]
    jobs = [job_of_row(row) for row in timed]
    found = {}
    for effect in ("", *EFFECTS):
        constants = fit(published_rows(), effect).constants if effect else FITTED
        compared = [Compared(row, in_metric(row, job, seconds_without(job, constants, effect)), row["value"])
                    for row, job in zip(timed, jobs)]
        found[effect] = {name: errors for name, (errors, _) in group_errors(compared).items()}
    return found


def source_of(row: Row) -> str:
    """Who published it: what stands before the first comma or blank of its source, or its arXiv number."""
    words = row["source"].split()
    return " ".join(words[:2]).rstrip(",") if words[0] in ("arXiv", "Ultra-Scale") else words[0].rstrip(",")


def table(compared: Sequence[Compared], noise: dict[str, dict] | None = None) -> str:
    """Errors by group as text."""
    lines = [f"{'group':10s} {'rows':>4s} {'median':>8s} {'p90':>8s} {'max':>8s}   "
             f"{'constant MFU: median':>20s} {'p90':>8s}   {'repeated runs':>13s}"]
    errors = group_errors(compared)
    for name, group in by_group(compared).items():
        if name not in errors:
            lines.append(f"{name:10s} {len(group):4d}   balanced accuracy {balanced_accuracy(group):.1%}")
            continue
        ours, theirs = errors[name]
        spread = spread_of(group, noise or {})
        lines.append(f"{name:10s} {ours.num_rows:4d} {ours.median:8.1%} {ours.p90:8.1%} {ours.largest:8.1%}   "
                     f"{theirs.median:20.1%} {theirs.p90:8.1%}   {'' if spread is None else f'{spread:.1%}':>13s}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m course_lib.planner.validate",
                                     description="Published against predicted, and the error by group.")
    parser.add_argument("file", nargs="?", help="rows in the format of facts/published.json; the course's own if none")
    parser.add_argument("--leave-out", action="store_true", help="fit without each source, and predict its rows")
    parser.add_argument("--groups", action="store_true", help="errors by group only")
    options = parser.parse_args()
    if options.file:
        with open(options.file, encoding="utf-8") as file:
            content = json.load(file)
        rows, fields = (content["rows"], content.get("fields", {})) if isinstance(content, dict) else (content, {})
    else:
        rows, fields = published_rows(), published_table("fields")
    known = [row for row in rows if not unknown(row)]
    compared = compare(known)
    if not options.groups:
        for each in compared:
            row = each.row
            off = "right" if row["metric"] == FITS and each.predicted == row["value"] else (
                "wrong" if row["metric"] == FITS else f"{each.error:+.1%}")
            print(f"{row['id']:34s} {row['split'][:3]}  {row['value']:10.4g} {each.predicted:10.4g} {off:>8s}  "
                  f"{'; '.join(outside_of_calibration(row))}")
        print()
    print(table(compared, fields.get("noise")))
    if options.leave_out:
        print("\nConstants fitted without each source's own rows:")
        print(table(leave_one_source_out(known), fields.get("noise")))


def unknown(row: Row) -> bool:
    """Say what is wrong with a row, and go on with the others."""
    try:
        job_of_row(row)
    except ValueError as reason:
        print(f"{row.get('id', 'a row')}: {reason}")
        return True
    return False


if __name__ == "__main__":
    main()
