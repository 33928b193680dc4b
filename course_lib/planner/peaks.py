"""Measured peaks of memory against predicted ones: what an estimate's memory is worth, by software."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.planner.errors import summary
from course_lib.planner.estimate import estimate_job
from course_lib.planner.rows import Row, job_of_row, peak_of_row


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
