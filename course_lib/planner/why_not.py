"""Why a layout is not the plan: it cannot be built, does not fit and what would make it fit, or is slower and by what.

What would help is found by trying: each remedy is one change of the job, and is told where the job then fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_lib.facts import Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import (
    Asked,
    ask,
    build_problem,
    chunk_counts,
    micro_batch_sizes,
    num_layers,
    savings,
    with_zero,
)
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import Estimate, estimate_job
from course_lib.planner.job import Job, job_problem
from course_lib.planner.plan import devices_enough, reasons_for
from course_lib.planner.search import TIE, bytes_of, fewest_layers, light_modules, search

GIB = 2**30


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
    fitting = [job for job in jobs if bytes_of(job, asked) <= asked.limit_bytes]
    if not fitting:
        return too_large(min(jobs, key=lambda job: bytes_of(job, asked)), asked)
    found = min(map(estimate_job, fitting), key=lambda each: each.step_s)
    return beside_the_best(found, [estimate_job(job) for job in jobs if job not in fitting], asked)


# It cannot be built

def layout_problem(asked: Asked, layout: ParallelLayout, micro_batch: int, v: int) -> str | None:
    """What the planner, the trainers of chapter 9 or Megatron-Core would refuse."""
    return job_problem(asked.shape, asked.cluster, layout, asked.global_batch, micro_batch, asked.sequence_length, v
                       ) or build_problem(asked, layout, micro_batch, v)


def jobs_of(asked: Asked, layout: ParallelLayout, micro_batch: int = 0, v: int = 0) -> Iterator[Job]:
    """The layout with every micro-batch and v, or those that are named."""
    rows = asked.global_batch // layout.dp
    for b in (micro_batch,) if micro_batch else micro_batch_sizes(rows):
        for chunks in (v,) if v else chunk_counts(num_layers(asked.shape), layout.pp, rows // b):
            yield from savings(asked.job(layout, b, chunks), asked.choices)


# It does not fit

def too_large(job: Job, asked: Asked) -> WhyNot:
    """The answer for a layout that does not fit: by how much, and which single changes would help."""
    found, limit = estimate_job(job), asked.limit_bytes
    over = (f"{(found.memory_bytes - limit) / GIB:.1f} GiB too much with micro-batch {job.micro_batch} and v {job.v}: "
            f"{found.memory_bytes / GIB:.1f} GiB, of {limit / GIB:.1f} that leave room for fragments")
    if found.fits:
        over += f" ({found.job.cluster.usable_bytes / GIB:.1f} can be allocated: it may run)"
    helps = tuple(words for words, changed in remedies(job, asked) if bytes_of(changed, asked) <= limit)
    if not helps:  # one change alone
        helps = tuple(f"{words}, with all layers made again" for words, changed in remedies(job, asked)
                      if bytes_of(replace(changed, recompute="full", recompute_layers=0), asked) <= limit)
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
    yield from sharding_remedies(job, asked)
    yield from cut_further(job, asked)
    for b in sorted(b for b in micro_batch_sizes(asked.global_batch // job.layout.dp) if b < job.micro_batch)[-1:]:
        if not layout_problem(asked, job.layout, b, job.v):
            yield f"micro-batch {b}", replace(job, micro_batch=b)
    if job.v > 1:
        yield "v 1", replace(job, v=1)
    yield from more_devices(job, asked)


def sharding_remedies(job: Job, asked: Asked) -> Iterator[tuple[str, Job]]:
    """The lowest ZeRO stage that lets it fit."""
    for zero in range(job.layout.zero_stage + 1, 4 if job.layout.dp * job.layout.cp > 1 else 0):
        changed = with_zero(job, zero)
        if bytes_of(changed, asked) <= asked.limit_bytes or zero == 3:
            yield f"ZeRO-{zero}", changed
            return


def cut_further(job: Job, asked: Asked) -> Iterator[tuple[str, Job]]:
    """Twice the ranks along an axis, half the replicas; for each the least memory that a micro-batch and v give."""
    for axis in ("tp", "pp", "cp") if job.layout.dp % 2 == 0 else ():
        size = 2 * getattr(job.layout, axis)
        changed = attempt(job, asked, dp=job.layout.dp // 2, **{axis: size})
        if changed:
            yield f"{axis}{size},dp{job.layout.dp // 2}", changed


def more_devices(job: Job, asked: Asked) -> Iterator[tuple[str, Job]]:
    """Twice as many replicas, among which ZeRO shards what it may."""
    larger = replace(asked, cluster=asked.cluster.with_devices(2 * job.layout.world_size))
    changed = attempt(job, larger, dp=2 * job.layout.dp)
    if changed:
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


# It fits

def beside_the_best(found: Estimate, too_large: Sequence[Estimate], asked: Asked) -> WhyNot:
    """`too_large`: the same layout with micro-batches and v that do not fit."""
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
    return WhyNot(found.layout, verdict, (*reasons, *nearly_better(best, too_large, asked)), (), found)


def nearly_better(best: Estimate, too_large: Sequence[Estimate], asked: Asked) -> list[str]:
    """What would beat the best plan, were there a little more memory."""
    near = [each for each in too_large if each.memory_bytes <= asked.nearly_bytes and each.step_s < best.step_s]
    if not near:
        return []
    wanted = min(near, key=lambda each: each.step_s)
    over = (wanted.memory_bytes - asked.limit_bytes) / GIB
    return [f"with micro-batch {wanted.job.micro_batch} and v {wanted.job.v} it would take {wanted.step_s:.3g} s, "
            f"{1 - wanted.step_s / best.step_s:.0%} less than the best, but is {over:.1f} GiB too large"]
