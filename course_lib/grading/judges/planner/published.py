"""What the exercises about errors share: published runs of dense models, with what the planner says of each by cause.

Rows and estimates are those of course_lib.facts and course_lib.planner, computed when an exercise is asked for: nothing
here hangs on the planner's constants to the digit.
"""

from dataclasses import dataclass
from functools import lru_cache

from course_lib.facts import published_rows
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, job_of_row, published_seconds

# Causes of a step of a dense model; for the first four each stage waits at the pipeline's ends, which is the bubble.
WORK = ("matmul", "memory", "tp", "launch")
CAUSES = (*WORK, "pp", "bubble", "dp", "optimiser")


@dataclass(frozen=True)
class Published:
    """`seconds`: by cause, as the planner says. `measured`: of the step that was published."""

    job: Job
    seconds: dict[str, float]
    measured: float


@lru_cache(maxsize=1)
def dense_runs() -> tuple[Published, ...]:
    """The published runs of dense models under 1F1B, without context parallelism, with tp inside a node."""
    found = []
    for row in published_rows():
        if row["metric"] == FITS or (row.get("experts") or 1) > 1 or row["cp"] > 1 or row["schedule"] != "1f1b":
            continue
        job = job_of_row(row)
        if job.layout.tp <= job.cluster.devices_per_node:
            seconds = estimate_job(job).seconds
            found.append(Published(job, {cause: seconds[cause] for cause in CAUSES}, published_seconds(row, job)))
    return tuple(found)
