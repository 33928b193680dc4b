"""Published against predicted: python -m course_lib.planner.validate [FILE.json], rows as in facts/published.json.

Rows that constants were fitted on and rows that they were not stand apart; last come measured peaks of memory beside
predicted ones, by software. With sources left out, by kind, and with coverage of ranges: tools/fit_planner.py.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.facts import published_rows
from course_lib.planner.compare import (
    Compared,
    balanced_accuracy,
    by_group,
    compare,
    errors_of,
    predict_row,
    rows_with_times,
    summary,
)
from course_lib.planner.constants import FITTED, Constants
from course_lib.planner.estimate import estimate_job
from course_lib.planner.rows import FITS, Row, job_of_row, peak_of_row, read_rows

# What has to lie within the rows that constants were fitted on, or a warning says so.
RANGED = ("hidden", "seq", "mbs", "gpus", "tp", "cp", "pp", "dp")


def predict(row: Row, constants: Constants = FITTED) -> float:
    """What the planner says of a row, in the row's own metric; 1.0 or 0.0 for whether it fits.

    ValueError names an unknown device, metric or word, or what is missing. A row outside what the constants were fitted
    on is predicted with a warning.
    """
    job = job_of_row(row)
    outside = outside_of_calibration(row)
    if outside:
        warnings.warn(f"the row {row.get('id', '')!r} lies outside the calibrated range: {', '.join(outside)}",
                      stacklevel=2)
    return predict_row(row, job, constants)


def outside_of_calibration(row: Row) -> list[str]:
    """In which fields the row lies outside of all rows that constants were fitted on."""
    fitted, found = published_rows("calibration"), []
    for name in RANGED:
        low, high = min(each[name] for each in fitted), max(each[name] for each in fitted)
        if not low <= row[name] <= high:
            found.append(f"{name}={row[name]} (fitted on {low} to {high})")
    hardware = {each["hw"].split(" ")[0] for each in fitted}
    return found + ([f"hw={row['hw']}"] if row["hw"].split(" ")[0] not in hardware else [])


@dataclass(frozen=True)
class MeasuredPeak:
    """Bytes of the device whose peak a run tells, and what the planner says of it. `fitted`: ACTIVATIONS_EAGER was
    fitted on it. `said_to_fit`: the planner's answer for a run that did run.
    """

    row: Row
    software: str
    measured_bytes: float
    predicted_bytes: float
    fitted: bool
    said_to_fit: bool

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_bytes / self.measured_bytes - 1


def measured_peaks(rows: Sequence[Row]) -> list[MeasuredPeak]:
    """Measured beside predicted, of the rows that say what was held."""
    found = []
    for row in rows:
        if row.get("peak_gb"):
            estimate = estimate_job(job_of_row(row))
            fitted = row["split"] == "calibration" and estimate.job.software.activations_eager
            predicted = sum(peak_of_row(row, estimate.job).values())
            found.append(MeasuredPeak(row, estimate.job.software.name, row["peak_gb"] * 2**30, predicted, fitted,
                                      estimate.fits))
    return found


# As text

def table(compared: Sequence[Compared], noise: dict[str, dict] | None = None) -> str:
    """Errors by group as text: rows that constants were fitted on, then the others; how far repeated runs lie apart,
    where somebody repeated them.
    """
    lines = [f"{'':10s} {'fitted on':>13s}   {'not fitted on':^31s}   {'repeated':>8s}",
             f"{'group':10s} {'rows':>4s} {'median':>8s}   {'rows':>4s} {'median':>8s} {'p90':>8s} {'max':>8s}"]
    for name, group in by_group(compared).items():
        if group[0].row["metric"] == FITS:
            lines.append(f"{name:10s} {len(group):4d}   balanced accuracy {balanced_accuracy(group):.1%}")
            continue
        spreads = [each["spread_percent"] for each in [(noise or {}).get(name, {}), *(each.row for each in group)]
                   if "spread_percent" in each]
        lines.append(f"{name:10s} {error_columns(group)}   {f'{max(spreads):.1f}%' if spreads else '':>8s}".rstrip())
    return "\n".join([*lines, f"{'all':10s} {error_columns(rows_with_times(compared))}"])


def error_columns(compared: Sequence[Compared]) -> str:
    """Columns of those that were fitted on, and of those that were not."""
    fitted, others = rows_with_times(compared, True), rows_with_times(compared, False)
    left = f"{len(fitted):4d} {errors_of(fitted).median:8.1%}" if fitted else f"{'':13s}"
    return f"{left}   {errors_of(others).columns if others else '':31s}"


def table_of_peaks(peaks: Sequence[MeasuredPeak]) -> str:
    """Errors by software as text, of peaks that nothing was fitted on, then of those that ACTIVATIONS_EAGER was."""
    lines = [f"{'measured memory':28s} {'runs':>4s} {'median':>8s} {'p90':>8s} {'max':>8s}   said not to fit"]
    groups: dict[str, list[MeasuredPeak]] = {"all, not fitted": [each for each in peaks if not each.fitted]}
    for each in sorted(peaks, key=lambda each: each.fitted):
        groups.setdefault("fitted" if each.fitted else f"    {each.software}", []).append(each)
    for name, group in groups.items():
        if group:
            refused = sum(not each.said_to_fit for each in group)
            lines.append(f"{name:28s} {summary(name, [each.error for each in group]).columns}   {refused or ''}")
    return "\n".join(lines)


def main() -> None:
    """The command: predict the rows of a file, and print errors by group."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.planner.validate",
                                     description="Published against predicted, and the error by group.")
    parser.add_argument("file", nargs="?", help="rows in the format of facts/published.json; the course's own if none")
    parser.add_argument("--groups", action="store_true", help="errors by group only")
    options = parser.parse_args()
    rows, fields = read_rows(options.file)
    known = []
    for row in rows:  # what is wrong with a row is said, and the others go on
        try:
            job_of_row(row)
            known.append(row)
        except ValueError as reason:
            print(f"{row.get('id', 'a row')}: {reason}")
    compared = compare(known)
    if not options.groups:
        for each in compared:
            row = each.row
            off = f"{each.error:+.1%}" if row["metric"] != FITS else (
                "right" if each.predicted == row["value"] else "wrong")
            print(f"{row['id']:34s} {row['split'][:3]}  {row['value']:10.4g} {each.predicted:10.4g} {off:>8s}  "
                  f"{'; '.join(outside_of_calibration(row))}")
        print()
    print(table(compared, fields.get("noise")))
    if peaks := measured_peaks(known):
        print(f"\n{table_of_peaks(peaks)}")


if __name__ == "__main__":
    main()
