"""Published and predicted side by side: errors by kind of run and by group, fitted and not fitted apart.

What stands beside each plan is how far off the planner was on published runs that no constant was fitted on, of the
job's own kind (job.kinds_of). With too few of it the nearest wider kind answers, and is named. Where that has too few,
too, there is no number: NoRun says why, and what to measure. Structure and priors of the planner were made with these
runs in view (planner.constants), so a cluster that nobody has published may be worse than they say.

MFU is counted in one convention here: attention in full (s x s), nothing that is computed again, of the 16-bit peak.
Papers count otherwise, so a printed figure has to be converted before it stands beside ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from course_lib.costs.flops import sc21_step_flops, step_flops
from course_lib.facts import Shape
from course_lib.planner.constants import FITTED, Constants
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job, kinds_of
from course_lib.planner.rows import (
    FITS,
    PublishedRun,
    Row,
    causal_flops,
    in_metric,
    job_of_row,
    nearest_runs,
    published_seconds,
    unfitted_runs,
)

FEWEST = 4  # runs that make an error
MEASURE = ("a step of your own tells more: time one layout of the kind you plan for, and give it as "
           "--measured LAYOUT=SECONDS")


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
        return f"{'too few runs' if self.some else 'no run'} like this: {self.why}; {MEASURE}"

    @property
    def short(self) -> str:
        return "too few runs are like it" if self.some else "no run is like it"


def summary(name: str, errors: Sequence[float], beyond: str = "", nearest: tuple[PublishedRun, ...] = ()
            ) -> MeasuredError:
    """p90: the smallest that at least nine tenths of them do not exceed."""
    ordered = sorted(map(abs, errors))
    return MeasuredError(name, len(ordered), median(ordered), ordered[-(-9 * len(ordered) // 10) - 1], ordered[-1],
                         beyond, nearest)


@lru_cache(maxsize=1)
def runs_by_kind() -> dict[str, tuple[PublishedRun, ...]]:
    """Published runs that were not fitted, by each kind that they are of."""
    found: dict[str, tuple[PublishedRun, ...]] = {}
    for run in unfitted_runs():
        for kind in kinds_of(run.job):
            found[kind] = (*found.get(kind, ()), run)
    return found


def error_of(job: Job) -> MeasuredError | NoRun:
    """The error of the narrowest kind of `job` that has at least FEWEST runs, with a warning where the job is larger
    than all of them; NoRun where none has, or nobody published its device's generation.
    """
    runs, generation = unfitted_runs(), job.cluster.device.generation
    nearest = nearest_runs(job, runs)
    if all(run.job.cluster.device.generation != generation for run in runs):
        return NoRun(f"none on {job.cluster.device.name}", nearest)
    for kind in kinds_of(job):
        alike = runs_by_kind().get(kind, ())
        if len(alike) >= FEWEST:
            most = max(run.job.layout.world_size for run in alike)
            beyond = f"; none on more than {most:,} devices" if job.layout.world_size > most else ""
            return summary(kind, [run.error for run in alike], beyond, nearest)
    if not alike:
        return NoRun(f"none of {kind}", nearest)
    return NoRun(f"{len(alike)} of {kind}; an error needs {FEWEST}", nearest, some=True)


GROUPS = {  # of published rows, in words
    "sc21": "Megatron-LM 2021", "sc21t2": "Megatron-LM 2021, beside ZeRO-3", "zero3": "DeepSpeed ZeRO-3, 2021",
    "misc": "GPT-3 and MT-NLG", "korth": "selective recomputation, 2022", "m2020": "Megatron-LM 2020, A100",
    "v100": "Megatron-LM 2020, V100", "zb": "zero-bubble pipelines, 2023", "llama3": "Llama 3 405B, Meta",
    "mcore": "Megatron-Core 0.8", "tt": "torchtitan, H100", "mptA": "MPT, A100", "mptH": "MPT, H100",
    "vtrain": "vTrain's own runs", "ultra": "Ultra-Scale Playbook", "fits": "Ultra-Scale: fits or not",
    "kempner": "KempnerForge, H200", "foundry": "LLM Foundry 2023", "cp": "long rows, H100", "moe": "experts, Hopper",
    "ttA": "torchtitan, A100", "nv-moe": "Megatron-Bridge, experts", "nv-dense": "Megatron-Bridge, dense",
    "folding": "MoE Parallel Folding", "zoo": "Megatron MoE ModelZoo", "dsv3": "DeepSeek-V3"}


@dataclass(frozen=True)
class Compared:
    """One row, and what the planner says of it, in the row's own metric."""

    row: Row
    predicted: float

    @property
    def fitted(self) -> bool:
        """Whether constants were fitted on it."""
        return self.row["split"] == "calibration"

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.row["value"] - 1


def compare(rows: Sequence[Row], constants: Constants = FITTED) -> list[Compared]:
    """Each row beside the planner's answer."""
    return [Compared(row, predict_row(row, job_of_row(row), constants)) for row in rows]


def predict_row(row: Row, job: Job, constants: Constants = FITTED) -> float:
    """What the planner says of a row, in the row's own metric."""
    found = estimate_job(job, constants)
    return float(found.fits) if row["metric"] == FITS else in_metric(row, job, found.step_s)


def by_group(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    """The rows of each group, in the order in which groups first come."""
    groups: dict[str, list[Compared]] = {}
    for each in compared:
        groups.setdefault(each.row["group"], []).append(each)
    return groups


def balanced_accuracy(compared: Sequence[Compared]) -> float:
    """How often "fits" is predicted rightly: the mean of the share among what fits, and of that among what does not."""
    shares = []
    for value in (1, 0):
        of_these = [each for each in compared if each.row["value"] == value]
        if of_these:
            shares.append(sum(each.predicted == value for each in of_these) / len(of_these))
    return sum(shares) / len(shares)


def group_errors(compared: Sequence[Compared]) -> dict[str, MeasuredError]:
    """Errors of every group of times."""
    return {name: errors_of(group, name) for name, group in by_group(rows_with_times(compared)).items()}


def rows_with_times(compared: Sequence[Compared], fitted: bool | None = None) -> list[Compared]:
    """The rows whose metric is a time or a rate; where `fitted` is given, those that constants were fitted on (True) or
    not (False).
    """
    return [each for each in compared if each.row["metric"] != FITS and fitted in (None, each.fitted)]


def errors_of(compared: Sequence[Compared], name: str = "all") -> MeasuredError:
    """Median, 90th percentile and largest of their errors."""
    return summary(name, [each.error for each in compared])


# MFU, in one convention

def mfu_in_full(share: float, shape: Shape, sequence_length: int, convention: str) -> float:
    """A published MFU as the planner counts. `convention` of the publication: "full" (s x s, as here), "causal" (half
    of attention, since the mask hides the rest), or "sc21" (Narayanan et al. 2021, equation 3: with a second forward
    pass). ValueError for another.
    """
    row = {"gbs": 1, "seq": sequence_length}
    full = step_flops(shape, 1, sequence_length)
    counted = {"full": lambda: full, "causal": lambda: causal_flops(row, shape), "sc21": lambda: sc21_step_flops(
        1, sequence_length, shape.num_layers, shape.hidden_size, shape.vocab_size)}
    if convention not in counted:
        raise ValueError(f"convention={convention!r}: expected one of {', '.join(counted)}")
    return share * full / counted[convention]()


def mfu_of(row: Row, job: Job) -> float:
    """What the published step reaches, counted as everywhere in the planner."""
    flops = step_flops(job.shape, job.global_batch, job.sequence_length)
    return flops / published_seconds(row, job) / row["gpus"] / job.cluster.peak_flops_per_s()


def printed_mfu(row: Row, job: Job) -> float | None:
    """What the publication calls its share of the peak, in its own convention; None where it has tokens or seconds."""
    if row["metric"].startswith("MFU"):
        return row["value"] / 100
    return row["value"] * 1e12 / job.cluster.peak_flops_per_s() if "TFLOP/s" in row["metric"] else None
