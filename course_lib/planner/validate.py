"""Published against predicted: python -m course_lib.planner.validate [FILE.json], rows as in facts/published.json.

Rows that constants were fitted on and rows that they were not stand apart. With --leave-out constants are fitted anew
for each source without its own rows, once with the profile of its software, that was written by hand with those rows in
view, once with the generic one, and once with what a new reader can tell of his software: whether it fuses kernels, and
which attention it calls. Beside them stand the priors alone, without any fit.
Last come measured peaks of memory beside predicted ones: what an estimate's memory is worth, by software.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean

from course_lib.facts import published_rows
from course_lib.planner.compare import (
    Compared,
    MeasuredError,
    balanced_accuracy,
    by_group,
    compare,
    errors_of,
    generic_job,
    group_errors,
    job_from_answers,
    predict_row,
    rows_with_times,
    summary,
)
from course_lib.planner.constants import FITTED, Constants, priors
from course_lib.planner.estimate import estimate_job
from course_lib.planner.fit import EFFECTS, fit, seconds_without
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row, peak_of_row, read_rows


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


def table_of_peaks(peaks: Sequence[MeasuredPeak]) -> str:
    """Errors by software as text, of peaks that nothing was fitted on, then of those that ACTIVATIONS_EAGER was."""
    lines = [f"{'measured memory':28s} {'runs':>4s} {'median':>8s} {'p90':>8s} {'max':>8s}   said not to fit"]
    groups: dict[str, list[MeasuredPeak]] = {"all, not fitted": [each for each in peaks if not each.fitted]}
    for each in peaks:
        groups.setdefault(f"    {each.software}" if not each.fitted else "fitted", []).append(each)
    groups["fitted"] = groups.pop("fitted", [])
    for name, group in groups.items():
        if group:
            errors = summary(name, [each.error for each in group])
            refused = sum(not each.said_to_fit for each in group)
            lines.append(f"{name:28s} {errors.columns}   {refused or ''}")
    return "\n".join(lines)


NEAR = 0.01  # fits of which only the errors are looked at end sooner
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


# Left out

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
    return fit([row for row in published_rows() if source_of(row) != source], tolerance=NEAR).constants


def leave_one_source_out(rows: Sequence[Row], job_of: Callable[[Row], Job] = job_of_row) -> list[Compared]:
    """Each source's rows, predicted with constants that were fitted without it. `job_of`: generic_job or
    job_from_answers do without the profile of its software, too.
    """
    fitted_on = {source_of(row) for row in published_rows("calibration")}
    found = []
    for source in dict.fromkeys(source_of(row) for row in rows):
        own = [row for row in rows if source_of(row) == source]
        found += compare(own, constants_without(source) if source in fitted_on else FITTED, job_of)
    return found


def leave_one_effect_out(rows: Sequence[Row], effects: Sequence[str] = ("", *EFFECTS)
                         ) -> dict[str, dict[str, MeasuredError]]:
    """The planner's errors by group where it does without an effect, its constants fitted so; "" for with all."""
    timed = [row for row in rows if row["metric"] != FITS]
    jobs = [job_of_row(row) for row in timed]
    found = {}
    for effect in effects:
        constants = fit(published_rows(), effect, NEAR).constants if effect else FITTED
        compared = [Compared(row, in_metric(row, job, seconds_without(job, constants, effect)), row["value"])
                    for row, job in zip(timed, jobs)]
        found[effect] = {name: errors for name, (errors, _) in group_errors(compared).items()}
    return found


# As text

def table(compared: Sequence[Compared], noise: dict[str, dict] | None = None) -> str:
    """Errors by group as text: rows that constants were fitted on, then the others."""
    lines = [f"{'':10s} {'fitted on':>13s}   {'not fitted on':^31s}   {'constant MFU':^17s}   {'repeated':>8s}",
             f"{'group':10s} {'rows':>4s} {'median':>8s}   {'rows':>4s} {'median':>8s} {'p90':>8s} {'max':>8s}   "
             f"{'median':>8s} {'p90':>8s}   {'runs':>8s}"]
    errors = group_errors(compared)
    for name, group in by_group(compared).items():
        if name not in errors:
            lines.append(f"{name:10s} {len(group):4d}   balanced accuracy {balanced_accuracy(group):.1%}")
            continue
        # How far repeated runs lie apart, where somebody repeated them.
        repeated = [each.row for each in group if "spread_percent" in each.row]
        spreads = [noise[name]] if name in (noise or {}) else repeated
        spread, (_, theirs) = max((each["spread_percent"] / 100 for each in spreads), default=None), errors[name]
        lines.append(f"{name:10s} {error_columns(group)}   {theirs.median:8.1%} {theirs.p90:8.1%}   "
                     f"{'' if spread is None else f'{spread:.1%}':>8s}")
    return "\n".join([*lines, f"{'all':10s} {error_columns(rows_with_times(compared))}"])


def error_columns(compared: Sequence[Compared]) -> str:
    """Columns of those that were fitted on, and of those that were not."""
    fitted, others = rows_with_times(compared, True), rows_with_times(compared, False)
    left = f"{len(fitted):4d} {errors_of(fitted).median:8.1%}" if fitted else f"{'':13s}"
    return f"{left}   {errors_of(others).columns if others else '':31s}"


def table_of_ways(found: dict[str, list[Compared]]) -> str:
    """Median and nine of ten by group as text, a pair of columns for each way; of the mean of groups' medians, in which
    a small group counts as much as a large one.
    """
    groups = {way: by_group(rows_with_times(compared)) for way, compared in found.items()}

    def line(name: str, cells: Iterable[str]) -> str:
        return " ".join([f"{name:15s}", *(f"{cell:>18s}" for cell in cells)])

    def both(errors: MeasuredError) -> str:
        return f"{errors.median:.1%} {errors.p90:7.1%}"

    means = (mean(errors_of(group).median for group in of.values()) for of in groups.values())
    return "\n".join([
        line("", found), *(line(name, (both(errors_of(of[name])) for of in groups.values()))
                           for name in next(iter(groups.values()))),
        line("all", (both(errors_of(rows_with_times(compared))) for compared in found.values())),
        line("mean of groups", (f"{each:.1%} {'':7s}" for each in means))])


def main() -> None:
    """The command: predict the rows of a file, and print errors by group."""
    parser = argparse.ArgumentParser(prog="python -m course_lib.planner.validate",
                                     description="Published against predicted, and the error by group.")
    parser.add_argument("file", nargs="?", help="rows in the format of facts/published.json; the course's own if none")
    parser.add_argument("--leave-out", action="store_true", help="fit without each source, and predict its rows")
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
            off = "right" if row["metric"] == FITS and each.predicted == row["value"] else (
                "wrong" if row["metric"] == FITS else f"{each.error:+.1%}")
            print(f"{row['id']:34s} {row['split'][:3]}  {row['value']:10.4g} {each.predicted:10.4g} {off:>8s}  "
                  f"{'; '.join(outside_of_calibration(row))}")
        print()
    print(table(compared, fields.get("noise")))
    if peaks := measured_peaks(known):
        print(f"\n{table_of_peaks(peaks)}")
    if options.leave_out:
        print("\nMedian and nine of ten, where constants are the priors, or fitted without each source, then predicted "
              "without its software's profile, too, or with two things told of it (fused kernels, attention):")
        print(table_of_ways({  # with less and less that was made for these rows
            "as fitted": compared, "priors alone": compare(known, priors()),
            "source out": leave_one_source_out(known), "and its profile": leave_one_source_out(known, generic_job),
            "two things told": leave_one_source_out(known, job_from_answers)}))


if __name__ == "__main__":
    main()
