"""How far off the planner was on published runs: what stands beside each of its plans.

Only runs count that no constant was fitted on. A kind of run is a software on a generation of devices at a scale, where
experts, 8-bit products, context parallelism and tensor parallelism across nodes make kinds of their own. With too few
runs of a job's own kind the nearest wider one answers, and is named. Where that has too few runs, too, there is no
number: NoRun says why. Structure and priors of the planner were made with these runs in view (planner.constants), so a
cluster that nobody has published may be worse than they say: planner.validate --leave-out has that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from course_lib.planner.job import Job
from course_lib.planner.runs import PublishedRun, features_of, generation_of, nearest_runs, scale_of, unfitted_runs

FEWEST = 4  # runs that make an error


class WithNearestRuns:
    """An answer with the runs that are nearest to the job."""

    nearest: tuple[PublishedRun, ...]

    @property
    def text(self) -> str:
        """It in words, and the nearest runs below it, a line each."""
        return "\n".join([str(self), *(f"    {run}" for run in self.nearest)])


@dataclass(frozen=True)
class MeasuredError(WithNearestRuns):
    """Relative errors of step times (or of throughputs), without their signs. `beyond`: where the job is larger than
    all these runs. `nearest`: the runs that are most like the job, whether of this kind or not.
    """

    kind: str
    num_rows: int
    median: float
    p90: float
    largest: float
    beyond: str = ""
    nearest: tuple[PublishedRun, ...] = ()

    def __str__(self) -> str:
        return (f"{self.kind}, {self.num_rows} published runs: {self.median:.0%} median, {self.p90:.0%} for nine of ten"
                f"{self.beyond}")

    @property
    def short(self) -> str:
        return f"runs like it: {self.median:.0%} off, nine of ten {self.p90:.0%}"

    @property
    def columns(self) -> str:
        """Runs, median, 90th percentile and largest error, as columns of a table."""
        return f"{self.num_rows:4d} {self.median:8.1%} {self.p90:8.1%} {self.largest:8.1%}"


@dataclass(frozen=True)
class NoRun(WithNearestRuns):
    """There is no error to tell: `why`, and the runs that are least unlike the job. `some`: there are runs like it, and
    fewer than FEWEST.
    """

    why: str
    nearest: tuple[PublishedRun, ...] = ()
    some: bool = False

    def __str__(self) -> str:
        return f"{'too few runs' if self.some else 'no run'} like this: {self.why}"

    @property
    def short(self) -> str:
        return "too few runs are like it" if self.some else "no run is like it"


def summary(name: str, errors: Sequence[float], beyond: str = "", nearest: tuple[PublishedRun, ...] = ()
            ) -> MeasuredError:
    """p90: the smallest that at least nine tenths of them do not exceed."""
    ordered = sorted(map(abs, errors))
    return MeasuredError(name, len(ordered), median(ordered), ordered[-(-9 * len(ordered) // 10) - 1], ordered[-1],
                         beyond, nearest)


Key = tuple[str, ...]


def keys_of(job: Job) -> list[tuple[str, Key]]:
    """(name, key) of its kind and of each wider one. Runs with the same key at one level are of one kind. Another
    software may answer for plain layouts; not for experts, few bits, or tensor parallelism across nodes.
    """
    features, generation = features_of(job), generation_of(job.cluster.device.name)
    software, scale = job.software.name, scale_of(job.cluster, job.layout.world_size)
    also = f" with {' and '.join(features)}" if features else ""
    own = "*".join(features)
    found = [(f"{software} on {generation}, {scale}{also}", ("1", own, software, generation, scale)),
             (f"{software} on {generation}{also}", ("2", own, software, generation))]
    if set(features) - {"context parallelism"}:
        return [*found, (f"{software} on all devices{also}", ("3", own, software))]
    return [*found, (f"all software on {generation}, {scale}{also}", ("4", own, generation, scale)),
            (f"all software on {generation}{also}", ("5", own, generation))]


@lru_cache(maxsize=1)
def runs_by_key() -> dict[Key, tuple[PublishedRun, ...]]:
    """Published runs that were not fitted, by each kind that they are of."""
    found: dict[Key, tuple[PublishedRun, ...]] = {}
    for run in unfitted_runs():
        for _, key in keys_of(run.job):
            found[key] = (*found.get(key, ()), run)
    return found


def errors_by_kind() -> dict[str, MeasuredError]:
    """The error of every narrowest kind that was published: software, generation, scale, and what is special."""
    found: dict[str, list[float]] = {}
    for run in unfitted_runs():
        found.setdefault(keys_of(run.job)[0][0], []).append(run.error)
    return {kind: summary(kind, errors) for kind, errors in found.items()}


def error_of(job: Job) -> MeasuredError | NoRun:
    """The error of the narrowest kind of `job` that has at least FEWEST runs; NoRun where none has, or nobody published
    its device's generation.
    """
    runs, generation = unfitted_runs(), generation_of(job.cluster.device.name)
    nearest = nearest_runs(job, runs)
    if all(generation_of(run.job.cluster.device.name) != generation for run in runs):
        return NoRun(f"none on {job.cluster.device.name}", nearest)
    for name, key in keys_of(job):
        alike = runs_by_key().get(key, ())
        if len(alike) >= FEWEST:
            return summary(name, [run.error for run in alike], beyond(job, alike), nearest)
    if not alike:
        return NoRun(f"none of {name}", nearest)
    return NoRun(f"{len(alike)} of {name}; an error needs {FEWEST}", nearest, some=True)


def beyond(job: Job, runs: Sequence[PublishedRun]) -> str:
    """A warning where the job is larger than every run that the error was measured on; "" otherwise."""
    most = max(run.job.layout.world_size for run in runs)
    return f"; none on more than {most:,} devices" if job.layout.world_size > most else ""
