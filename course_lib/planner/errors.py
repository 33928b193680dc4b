"""How far off the planner was on published runs, by kind of run: what stands beside each of its advices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from course_lib.facts import published_rows
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, in_metric, job_of_row

# A kind, and who belongs to it; the first one that is true counts.
KINDS: tuple[tuple[str, Callable[[Job], bool]], ...] = (
    ("mixture of experts", lambda job: job.shape.num_experts > 1),
    ("context parallelism", lambda job: job.layout.cp > 1),
    ("tensor parallelism across nodes on a cloud's Ethernet",
     lambda job: job.layout.tp > job.cluster.devices_per_node and job.software.across == "across_cloud_s"),
    ("tensor parallelism across nodes", lambda job: job.layout.tp > job.cluster.devices_per_node),
    ("pipelines on Hopper", lambda job: job.layout.pp > 1 and job.cluster.device.year >= 2022),
    ("pipelines on A100 and older", lambda job: job.layout.pp > 1),
    ("tensor parallelism on Hopper", lambda job: job.layout.tp > 1 and job.cluster.device.year >= 2022),
    ("tensor parallelism on A100 and older", lambda job: job.layout.tp > 1),
    ("data parallelism on Hopper", lambda job: job.cluster.device.year >= 2022),
    ("data parallelism on A100 and older", lambda job: True),
)


@dataclass(frozen=True)
class MeasuredError:
    """Relative errors of step times (or of throughputs), without their signs."""

    kind: str
    num_rows: int
    median: float
    p90: float
    largest: float

    def __str__(self) -> str:
        return f"{self.kind}, {self.num_rows} published runs: {self.median:.0%} median, {self.p90:.0%} for nine of ten"


def kind_of(job: Job) -> str:
    return next(name for name, belongs in KINDS if belongs(job))


def summary(name: str, errors: Sequence[float]) -> MeasuredError:
    """p90: the smallest that at least nine tenths of them do not exceed."""
    ordered = sorted(map(abs, errors))
    return MeasuredError(name, len(ordered), median(ordered), ordered[-(-9 * len(ordered) // 10) - 1], ordered[-1])


@lru_cache(maxsize=1)
def errors_by_kind() -> dict[str, MeasuredError]:
    found: dict[str, list[float]] = {}
    for row in published_rows():
        if row["metric"] != FITS:
            job = job_of_row(row)
            predicted = in_metric(row, job, estimate_job(job).step_s)
            found.setdefault(kind_of(job), []).append(predicted / row["value"] - 1)
    return {kind: summary(kind, errors) for kind, errors in found.items()}


def error_of(job: Job) -> MeasuredError | None:
    """None where no run of its kind was published."""
    return errors_by_kind().get(kind_of(job))
