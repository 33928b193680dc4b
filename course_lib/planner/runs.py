"""Published runs in words, and how near two runs are to each other.

Only those that no constant was fitted on: their errors are what stands beside an advice (planner.errors). Nearness is
counted in factors of two, with a fixed price for another device, software or number format; which runs are named beside
an advice depends on it, no number does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from course_lib.costs.flops import count_parameters
from course_lib.facts import MODELS, Shape, published_rows
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import estimate_job
from course_lib.planner.job import Job
from course_lib.planner.rows import FITS, Row, in_metric, job_of_row

NAMED = 3  # nearest runs
# A generation, and what its devices' names begin with; another device is a generation of its own.
GENERATIONS = {"Volta": ("V100",), "Ampere": ("A100", "A800"), "Hopper": ("H100", "H200", "H800", "H20", "GH200"),
               "Blackwell": ("B200", "B300", "GB200", "GB300")}
SCALES = ((8, "one node"), (512, "up to 512 devices"), (float("inf"), "more than 512 devices"))
BITS = {"bf16": 16, "fp16": 16, "nvfp4": 4}  # all others have 8
OTHER_DEVICE, OTHER_GENERATION, OTHER_SOFTWARE, OTHER_BITS, OTHER_EXPERTS = 1, 3, 2, 3, 4


@dataclass(frozen=True)
class PublishedRun:
    """A published run. `error`: the planner's, relative, in the row's own metric. `faster`: the planner's run is the
    faster one.
    """

    row: Row
    job: Job
    error: float

    @property
    def faster(self) -> bool:
        """Whether the planner promises a faster run than was published: of a step time, that it is too low."""
        return (self.error > 0) != self.row["metric"].startswith("step time")

    def __str__(self) -> str:
        off = f"{abs(self.error):.0%} too {'fast' if self.faster else 'slow'}"
        return f"{describe(self.job)}{', v assumed' if assumes_v(self.row) else ''}: {off}"


@lru_cache(maxsize=1)
def unfitted_runs() -> tuple[PublishedRun, ...]:
    """All published times that no constant was fitted on, predicted."""
    found = []
    for row in published_rows("visible"):
        if row["metric"] != FITS:
            job = job_of_row(row)
            found.append(PublishedRun(row, job, in_metric(row, job, estimate_job(job).step_s) / row["value"] - 1))
    return tuple(found)


# What a run is

def generation_of(name: str) -> str:
    """The generation of a device, by the first word of its name."""
    word = name.split()[0]
    return next((generation for generation, words in GENERATIONS.items() if word in words), name)


def scale_of(cluster: Cluster, num_devices: int) -> str:
    """How large a cluster is, in the words under which errors are sorted."""
    if num_devices <= cluster.devices_per_node:
        return SCALES[0][1]
    return next(words for most, words in SCALES[1:] if num_devices <= most)


def bits_of(job: Job) -> int:
    """Bits of a number in the products of linear layers."""
    return BITS.get(job.precision, 8)


def features_of(job: Job) -> tuple[str, ...]:
    """What makes a run another kind, in words."""
    L = job.layout
    found = {"experts": job.shape.num_experts > 1, f"{bits_of(job)}-bit products": bits_of(job) < 16,
             "context parallelism": L.cp > 1,
             "tensor parallelism across nodes": L.tp > job.cluster.devices_per_node and not job.cluster.is_torus}
    return tuple(words for words, has in found.items() if has)


def name_of(shape: Shape) -> str:
    """A model of facts with as many layers of these sizes; else how many parameters."""
    def sizes(of: Shape) -> tuple[int, ...]:
        return of.num_layers, of.hidden_size, of.num_heads, of.num_kv_heads, of.ffn_size, of.num_experts, of.vocab_size
    known = next((model.name for model in MODELS if model.shape and sizes(model.shape) == sizes(shape)), "")
    experts = f" with {shape.num_experts} experts" if shape.num_experts > 1 else ""
    return known or f"{'Llama' if shape.gated else 'GPT'} of {count_parameters(shape) / 1e9:.3g}B{experts}"


def describe(job: Job) -> str:
    """The job in words: model, devices, cut, software."""
    L = job.layout
    axes = (("tp", L.tp), ("cp", L.cp), ("pp", L.pp), ("ep", L.ep), ("v", job.v), ("ZeRO-", L.zero_stage))
    cut = " ".join(f"{axis}{size}" for axis, size in axes if size > 1 or axis == "ZeRO-" and size) or "dp alone"
    bits = "" if bits_of(job) == 16 else f", {job.precision}"
    return f"{name_of(job.shape)} on {L.world_size:,} {job.cluster.device.name}, {cut}{bits}, {job.software.name}"


def assumes_v(row: Row) -> bool:
    """Chunks per stage that the source does not give."""
    return row["v"] > 1 and "v NOT published" in row.get("verified", "")


# How far apart two are

def distance(one: Job, other: Job) -> float:
    """Factors of two between sizes and layouts, added up, and what another device, software or number format counts."""
    def sizes(job: Job) -> tuple[float, ...]:
        L = job.layout
        return (count_parameters(job.shape), L.world_size, job.sequence_length, job.micro_batch, L.tp, L.cp, L.pp,
                L.ep, job.v**0.5)
    names = [job.cluster.device.name for job in (one, other)]
    return sum(abs(log2(a / b)) for a, b in zip(sizes(one), sizes(other))) + (
        OTHER_DEVICE * (names[0] != names[1])
        + OTHER_GENERATION * (generation_of(names[0]) != generation_of(names[1]))
        + OTHER_SOFTWARE * (one.software != other.software) + OTHER_BITS * (bits_of(one) != bits_of(other))
        + OTHER_EXPERTS * ((one.shape.num_experts > 1) != (other.shape.num_experts > 1)))


def nearest_runs(job: Job, runs: Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    """The few of `runs` that are most like the job, nearest first."""
    return tuple(sorted(runs, key=lambda run: distance(job, run.job))[:NAMED])
