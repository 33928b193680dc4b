"""How far off the planner is, for its authors: python -m tools.fit_planner [FILE.json ...] [--leave-out] [--worth].

By kind of run and by group: rows that constants were fitted on, rows that they were not, and, with --leave-out, the
rows of a source whose own calibration rows the fit did without. Median, nine of ten, worst; how many published values
lie in the estimate's range; how well "fits" is told from "does not", both counted alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp

from course_lib.planner.compare import balanced_accuracy, compare
from course_lib.planner.constants import FITTED, Constants
from course_lib.planner.estimate import estimate_job
from course_lib.planner.rows import FITS, Row, job_of_row, published_seconds, read_rows
from course_lib.planner.validate import constants_without, source_of


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


def measure(row: Row, constants: Constants = FITTED) -> Measured:
    """The row beside the planner's estimate."""
    job = job_of_row(row)
    found = estimate_job(job, constants)
    ratio = found.step_s / published_seconds(row, job)
    return Measured(row, ratio, exp(-found.uncertainty) <= ratio <= exp(found.uncertainty))


def kinds(row: Row) -> list[str]:
    """Kinds of runs that a row is of: all; dense or with experts; what else is special; its generation of devices."""
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
    unseen = {}
    if leave_out:
        fitted_on = {source_of(row) for row in timed if row["split"] == "calibration"}
        unseen = {row["id"]: measure(row, constants_without(source_of(row))) if source_of(row) in fitted_on
                  else found[row["id"]] for row in timed}
    groups: dict[str, list[Row]] = {}
    for row in timed:
        for name in [*kinds(row), f"  {row['group']}"]:
            groups.setdefault(name, []).append(row)
    head = f"{'runs':>4s} {'median':>7s} {'9 of 10':>7s} {'worst':>7s} {'in range':>12s}"
    lines = [f"{'':22s} | {'not fitted':42s} | {'fitted':42s} | its source left out",
             f"{'':22s} | {head} | {head} | {head}"]
    for name, of in sorted(groups.items(), key=lambda each: (each[0].startswith(" "), each[0] != "all", each[0])):
        parts = [[found[row["id"]] for row in of if (row["split"] == "calibration") == fitted]
                 for fitted in (False, True)] + [[unseen[row["id"]] for row in of] if unseen else []]
        lines.append(" | ".join([f"{name:22s}", *map(columns, parts)]))
    return "\n".join(lines)


def fits_table(rows: Sequence[Row]) -> str:
    """How often what fits is told from what does not."""
    told = [row for row in rows if row["metric"] == FITS]
    ran = [row["id"] for row in rows if row["metric"] != FITS and not estimate_job(job_of_row(row)).fits]
    return (f"fits or not, {len(told)} runs: {balanced_accuracy(compare(told)):.1%} balanced; "
            f"ran, but said not to fit: {len(ran)} {' '.join(ran)}") if told else ""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="rows in the format of facts/published.json; the course's own if none")
    parser.add_argument("--leave-out", action="store_true", help="fit without each source, and predict its rows")
    options = parser.parse_args()
    for file in options.files or [None]:
        rows, _ = read_rows(file)
        print(file or "facts/published.json", table(rows, options.leave_out), fits_table(rows), sep="\n")


if __name__ == "__main__":
    main()
