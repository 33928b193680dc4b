"""Plans: all layouts of a model on a cluster that can be built and fit, the best first; and why the others are not.

A slower layout is told with the causes that change, and what of it each change comes from. One that does not fit is
told with what would help: each remedy is one change of the job, tried, and told where the job then fits. Where nothing
fits at all, what means outside of the search would save is named, and how many devices would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, log
from typing import Any

from course_lib.facts import Model, Shape
from course_lib.facts.fact import above_zero
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import (
    Asked,
    ask,
    build_problem,
    micro_batch_sizes,
    schedules,
    with_zero,
)
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import Estimate, estimate_job
from course_lib.planner.job import Job, describe_recompute, job_problem
from course_lib.planner.memory import saved_bytes
from course_lib.planner.search import (
    SLOWEST,
    TIE,
    Progress,
    bytes_of,
    fewest_layers,
    find_leanest,
    fits,
    light_modules,
    memory_of,
    search,
)

GIB = 2**30
WORDS = {"matmul": "products", "memory": "passes over memory", "tp": "tensor parallelism", "cp": "context parallelism",
         "ep": "expert parallelism", "launch": "waits for launches", "pp": "messages between stages",
         "bubble": "the bubble", "dp": "data parallelism's messages", "optimiser": "the optimiser"}
WORTH_SAYING = 0.01  # of the step
MOST_DOUBLINGS = 8


class Plans(list[Estimate]):
    """Estimates, the best first. `asked`: what for. `nearly`: faster ones that fill the device beyond its room for
    fragments, or miss it by under a tenth.
    """

    def __init__(self, found: Iterable[Estimate], asked: Asked, nearly: Sequence[Estimate] = ()) -> None:
        super().__init__(found)
        self.asked, self.nearly = asked, list(nearly)

    @property
    def idle_devices(self) -> int:
        """Devices of the cluster that the first plan does not use."""
        return self.asked.cluster.num_devices - (self[0].num_devices if self else 0)

    @property
    def enough_rows(self) -> int:
        """The next batch whose rows use every device in the first plan's layout; 0 where none does."""
        job, world = (self[0].job, self.asked.cluster.num_devices) if self else (None, 1)
        if job is None or world % (job.layout.world_size // job.layout.dp):
            return 0
        each = world // (job.layout.world_size // job.layout.dp) * job.micro_batch
        return -(-job.global_batch // each) * each

    def corrected(self, times: float) -> Plans:
        """The same with steps that take so many times as long as estimated: all alike, so none changes its place."""
        return Plans([each.corrected(times) for each in self], self.asked,
                     [each.corrected(times) for each in self.nearly])

    @cached_property
    def reason(self) -> str:
        """Why there is none, and what would help; "" where there are plans."""
        return "" if self else explain_none(self.asked)

    def __getitem__(self, index: Any) -> Any:
        if not self and not isinstance(index, slice):
            raise IndexError(self.reason)
        return super().__getitem__(index)


def plan(model: Model | Shape, cluster: Cluster, global_batch: int, *, slowest: float = SLOWEST,
         told: Progress = lambda looked, best_s: None, **how: Any) -> Plans:
    """Estimates of all layouts that can be built, fit, and take at most `slowest` times as long as the best; ties with
    the first of them simplest first. `reasons_for` says why one is worse, `why_not` why one is missing.

    Where the model does not divide the devices, plans use fewer (Plans.idle_devices). An empty one has a `reason`.
    global_batch: rows of a step. choices: what the search may choose from. room: share of what a device can allocate
    that an estimate may fill, 0.9 of it; the rest is for fragments and for what the estimate misses. Others as in Job:
    sequence_length, precision, software, gradient_bytes, flash, sequence_parallel (wherever there is tensor
    parallelism) and so on.

    >>> from course_lib.facts import model
    >>> from course_lib.planner import Choices, cluster
    >>> only_replicas = Choices(tensor=(1,), pipeline=(1,), context=(1,), micro_batches=(1,), recompute=("none",))
    >>> found = plan(model("Llama 3 8B"), cluster("H100", 8), global_batch=64, choices=only_replicas)
    >>> [str(each.layout) for each in found]
    ['dp8,zero2', 'dp8,zero3']
    >>> plan(model("Llama 2 70B"), cluster("H100", 2), global_batch=8, choices=only_replicas)
    []
    """
    asked = ask(model, cluster, global_batch, **how)
    found, nearly = search(asked, slowest, told)
    return Plans(found, asked, nearly)


def correction_of(asked: Asked, measured: Mapping[str, float], micro_batch: int = 0, v: int = 0) -> float:
    """How many times as long as estimated steps take, by steps of one's own: {layout: seconds}. The mean of logarithms.
    ValueError for a layout that cannot be built, and for seconds that cannot be.
    """
    logs = []
    for text, seconds in measured.items():
        layout = ParallelLayout.from_string(text)
        if problem := layout_problem(asked, layout, micro_batch or 1, v or 1):
            raise ValueError(f"measured {text}: {problem}")
        found = min(map(estimate_job, jobs_of(asked, layout, micro_batch, v)), key=lambda each: each.step_s)
        logs.append(log(above_zero(seconds, f"seconds of {text}") / found.step_s))
    return exp(sum(logs) / len(logs)) if logs else 1.0


# Why one plan is slower than another

def reasons_for(estimate: Estimate, best: Estimate) -> list[str]:
    """Why `estimate` is slower than `best`, or what it gains: the causes that change, the largest change first."""
    change = {cause: estimate.seconds[cause] - best.seconds[cause] for cause in estimate.seconds}
    return [f"{WORDS[cause]} {change[cause] / best.step_s:+.0%} of the step{explain_cause(cause, estimate, best)}"
            for cause in sorted(change, key=lambda cause: -abs(change[cause]))
            if abs(change[cause]) > WORTH_SAYING * best.step_s]


def explain_cause(cause: str, estimate: Estimate, best: Estimate) -> str:
    """What of the layout a change of this cause comes from, as far as one sentence can say."""
    here, there, G = estimate.job, best.job, estimate.job.cluster.devices_per_node
    if cause == "tp" and here.layout.tp > G >= there.layout.tp:
        return f": tp{here.layout.tp} leaves the node of {G}"
    if cause == "bubble":
        return f": {here.num_microbatches} micro-batches through {here.layout.pp} stages of {here.v} chunks"
    if cause in ("matmul", "memory") and describe_recompute(here) != describe_recompute(there):
        return f": recompute {describe_recompute(here)}, not {describe_recompute(there)}"
    slower = estimate.seconds[cause] > best.seconds[cause]
    if cause in ("matmul", "launch") and here.tokens_per_rank != there.tokens_per_rank and (
            slower == (here.tokens_per_rank < there.tokens_per_rank)):  # small products are slow
        return f": products of {here.tokens_per_rank:.0f} tokens, not {there.tokens_per_rank:.0f}"
    if cause == "matmul" and here.layout.pp != there.layout.pp:
        return f": the fullest of {here.layout.pp} stages, not of {there.layout.pp}"
    if cause in ("dp", "optimiser") and here.layout.zero_stage != there.layout.zero_stage:
        return f": ZeRO-{here.layout.zero_stage}, not ZeRO-{there.layout.zero_stage}"
    if cause in ("tp", "cp", "ep", "dp"):
        size, other = getattr(here.layout, cause), getattr(there.layout, cause)
        return f": {cause}{size}, not {cause}{other}" if size != other else ""
    return ""


# Why a layout is not the plan

@dataclass(frozen=True)
class WhyNot:
    """`verdict`: "cannot be built", "does not fit", "slower", "a tie with the best" or "the best". `remedies`: what
    would make it fit, each alone. `estimate`: of the layout, None where it cannot be built.
    """

    layout: ParallelLayout
    verdict: str
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    estimate: Estimate | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.layout}: {self.verdict}", *self.reasons]
        if self.remedies:
            lines.append("what would help: " + "; or ".join(self.remedies))
        return "\n    ".join(lines)


def why_not(model: Model | Shape, cluster: Cluster, layout: ParallelLayout | str, global_batch: int, *,
            micro_batch: int = 0, v: int = 0, recompute: str = "none", recompute_layers: int = 0, **how: Any) -> WhyNot:
    """Why `layout`, such as "dp2,pp8,tp4", is not what plan puts first. micro_batch, v: 0 for the best there are. how:
    what else plan was asked for.

    ValueError for what names no layout.

    >>> from course_lib.facts import model
    >>> from course_lib.planner import cluster
    >>> why_not(model("Llama 3 8B"), cluster("H100", 8), "dp8", global_batch=64).verdict
    'does not fit'
    >>> print(why_not(model("Llama 3 8B"), cluster("H100", 8), "tp3", global_batch=64))
    tp3: cannot be built
        tp=3: expected a number that divides the 32 heads and the MLP's width of 14336
    """
    layout = ParallelLayout.from_string(layout) if isinstance(layout, str) else layout
    asked = ask(model, cluster, global_batch, **how)
    if problem := layout_problem(asked, layout, micro_batch or 1, v or 1):
        return WhyNot(layout, "cannot be built", (problem,))
    jobs = [replace(job, recompute=recompute, recompute_layers=recompute_layers)
            for job in jobs_of(asked, layout, micro_batch, v)]
    fitting = [job for job in jobs if fits(job, asked)]
    if not fitting:
        return explain_too_large(min(jobs, key=lambda job: bytes_of(job, asked)), asked)
    found = min(map(estimate_job, fitting), key=lambda each: each.step_s)
    return compare_with_best(found, [estimate_job(job) for job in jobs if job not in fitting], asked)


def layout_problem(asked: Asked, layout: ParallelLayout, micro_batch: int, v: int) -> str | None:
    """What the planner, the trainers of chapter 9 or Megatron-Core would refuse."""
    return job_problem(asked.shape, asked.cluster, layout, asked.global_batch, micro_batch, asked.sequence_length, v
                       ) or build_problem(asked, layout, micro_batch, v)


def jobs_of(asked: Asked, layout: ParallelLayout, micro_batch: int = 0, v: int = 0) -> Iterator[Job]:
    """The layout with every micro-batch and v, or those that are named."""
    rows = asked.global_batch // layout.dp
    for b in (micro_batch,) if micro_batch else micro_batch_sizes(rows):
        for chunks in (v,) if v else asked.chunk_counts(layout, rows // b):
            yield asked.job(layout, b, chunks)


def compare_with_best(found: Estimate, too_large: Sequence[Estimate], asked: Asked) -> WhyNot:
    """The answer for a layout that fits. `too_large`: the same with micro-batches and v that do not."""
    best = search(asked)[0][0]
    reasons, verdict = [str(found)], "the best"
    if best.layout != found.layout and found.step_s <= (1 + TIE) * best.step_s:
        verdict = "a tie with the best"
        reasons = [f"{best.layout} with v {best.job.v} is as fast, and simpler or as simple"]
    elif best.layout != found.layout:
        verdict = "slower"
        reasons = [f"{found.step_s / best.step_s - 1:.0%} slower than {best.layout} with v {best.job.v}",
                   *reasons_for(found, best)]
    if idle := asked.cluster.num_devices - found.num_devices:
        reasons.append(f"{idle:,} devices idle")
    return WhyNot(found.layout, verdict, (*reasons, *find_nearly_better(best, too_large, asked)), (), found)


def find_nearly_better(best: Estimate, too_large: Sequence[Estimate], asked: Asked) -> list[str]:
    """What would beat the best plan, were there a little more memory."""
    near = [each for each in too_large if each.memory_bytes <= asked.nearly_bytes and each.step_s < best.step_s]
    if not near:
        return []
    wanted = min(near, key=lambda each: each.step_s)
    over = (wanted.memory_bytes - asked.limit_bytes) / GIB
    return [f"with micro-batch {wanted.job.micro_batch} and v {wanted.job.v} it would take {wanted.step_s:.3g} s, "
            f"{1 - wanted.step_s / best.step_s:.0%} less than the best, but is {over:.1f} GiB too large"]


# What would make it fit

def explain_too_large(job: Job, asked: Asked) -> WhyNot:
    """The answer for a layout that does not fit: by how much, and which single changes would help."""
    found, limit = estimate_job(job), asked.limit_bytes
    over = (f"{(found.memory_bytes - limit) / GIB:.1f} GiB too much with micro-batch {job.micro_batch} and v {job.v}: "
            f"{found.memory_bytes / GIB:.1f} GiB, of {limit / GIB:.1f} that leave room for fragments")
    if found.fits:
        over += f" ({found.job.cluster.usable_bytes / GIB:.1f} can be allocated: it may run)"
    helps = tuple(words for words, changed in remedies(job, asked) if fits(changed, asked))
    if not helps:  # one change alone
        helps = tuple(f"{words}, with all layers made again" for words, changed in remedies(job, asked)
                      if fits(replace(changed, recompute="full", recompute_layers=0), asked))
    if not helps and (enough := devices_enough(asked)):
        helps = (f"{enough:,} devices in another layout",)
    return WhyNot(job.layout, "does not fit", (over,), helps, found)


def remedies(job: Job, asked: Asked) -> Iterator[tuple[str, Job]]:
    """Single changes that may make it fit, each in words."""
    if job.recompute != "full":
        all_again = replace(job, recompute="full")
        some = fewest_layers(all_again, asked)
        layers = -(-job.shape.num_layers // job.layout.pp)
        yield ((f"recompute {some.recompute_layers} of {layers} layers of each stage", some) if some else
               ("recompute all layers", all_again))
        if modules := light_modules(job):
            yield f"recompute {' and '.join(modules)} of all layers", replace(job, recompute_modules=modules)
    for zero in range(job.layout.zero_stage + 1, 4 if job.plane > 1 else 0):  # the lowest that lets it fit
        changed = with_zero(job, zero)
        if zero == 3 or fits(changed, asked):
            yield f"ZeRO-{zero}", changed
            break
    half = job.layout.dp // 2
    for axis in ("tp", "pp", "cp") if job.layout.dp % 2 == 0 else ():  # half the replicas, each cut once more
        size = 2 * getattr(job.layout, axis)
        if changed := attempt(job, asked, dp=half, **{axis: size}):
            yield f"{axis}{size},dp{half}", changed
    for b in sorted(b for b in micro_batch_sizes(asked.global_batch // job.layout.dp) if b < job.micro_batch)[-1:]:
        if not layout_problem(asked, job.layout, b, job.v):
            yield f"micro-batch {b}", replace(job, micro_batch=b)
    if job.v > 1:
        yield "v 1", replace(job, v=1)
    larger = replace(asked, cluster=asked.cluster.with_devices(2 * job.layout.world_size))
    if changed := attempt(job, larger, dp=2 * job.layout.dp):  # more replicas, among which ZeRO shards what it may
        yield f"{changed.layout.world_size:,} devices, dp{changed.layout.dp}", changed


def attempt(job: Job, asked: Asked, **sizes: int) -> Job | None:
    """The job in a layout of other sizes, with the micro-batch and v that need least; None where it cannot be."""
    try:
        layout = replace(job.layout, **sizes)
    except ValueError:  # experts no longer divide it
        return None
    if layout_problem(asked, layout, 1, 1):
        return None
    changed = (replace(each, recompute=job.recompute, recompute_layers=0) for each in jobs_of(asked, layout))
    return min(changed, key=lambda each: bytes_of(each, asked))


# Why there is no plan at all

def explain_none(asked: Asked) -> str:
    """Why no layout of all can be used, and what or how many devices would do."""
    jobs, where = leanest_jobs(asked), f"{asked.cluster.num_devices:,} {asked.cluster.device.name}"
    if not jobs:
        return (f"no layout of {where} divides the model's {asked.shape.num_layers} layers and {asked.shape.num_heads} "
                f"heads and a batch of {asked.global_batch} rows: expected other numbers, or fewer axes that are fixed")
    job = min(jobs, key=lambda each: bytes_of(each, asked))
    enough = devices_enough(asked)
    return "; ".join([
        f"no layout fits on {where}: {job.layout}, which needs least, takes {bytes_of(job, asked) / GIB:,.1f} of "
        f"{asked.limit_bytes / GIB:.1f} GiB with micro-batch {job.micro_batch}, recompute {job.recompute}",
        *(f"{way} would save {saved / GIB:,.1f} GiB" for way, saved in saved_bytes(job, memory_of(job, asked)).items()),
        f"{enough:,} devices would do" if enough else "shorter rows or another device would help"])


def leanest_jobs(asked: Asked) -> list[Job]:
    """For each layout the job that needs least memory."""
    found: dict[ParallelLayout, Job] = {}
    world = asked.cluster.num_devices
    for job in schedules(asked, range(world // 2 + 1, world + 1)):
        if job.layout not in found:
            found[job.layout] = find_leanest(job, asked)
    return [*found.values()]


def devices_enough(asked: Asked) -> int:
    """How often the devices must be doubled until something fits; 0 where that does not help."""
    # Doubling, and not one more device at a time: layouts divide powers of two, and ten looks are enough for a
    # thousand.
    for doublings in range(1, MOST_DOUBLINGS + 1):
        larger = replace(asked, cluster=asked.cluster.with_devices(asked.cluster.num_devices * 2**doublings))
        if any(fits(job, larger) for job in leanest_jobs(larger)):
            return larger.cluster.num_devices
    return 0
