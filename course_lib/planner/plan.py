"""Every legal layout, those that fit, best first; and why the others are worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.costs.checks import at_least, positive_share
from course_lib.costs.memory import USABLE
from course_lib.facts import Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import FITTED
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job, shape_of, why_not
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.memory import memory_bytes
from course_lib.planner.rates import rates_of
from course_lib.planner.rule import divisors
from course_lib.planner.software import MEGATRON_CORE, Software
from course_lib.planner.step import stages_of, step_seconds

MICRO_BATCHES = (1, 2, 4, 8, 16)
LONG = 16_384  # tokens in a row from which on context parallelism is tried
MOST_CHUNKS = 8


@dataclass(frozen=True)
class Choices:
    """What plan tries besides the axes."""

    recompute: tuple[str, ...] = ("none", "full")
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    micro_batches: tuple[int, ...] = MICRO_BATCHES
    chunks: tuple[int, ...] = (1, 2, 4, MOST_CHUNKS)
    tensor: tuple[int, ...] = ()  # none: all that divide the model, up to two nodes


ALL = Choices()


def layouts(shape: Shape, cluster: Cluster, sequence_length: int, choices: Choices = ALL) -> Iterator[ParallelLayout]:
    """All that use every device and divide the model evenly; pipelines also where the two ends count as a layer each.

    Under pipelines ZeRO goes to stage 2, as in Llama 3: sharded parameters would be gathered with every micro-batch.
    """
    world, L = cluster.num_devices, shape.num_layers
    tensor = choices.tensor or [t for t in divisors(2 * cluster.devices_per_node)
                                if not (shape.num_heads % t or shape.ffn_size % t)]
    for tp in tensor:
        for pp in (p for p in divisors(world // tp) if p <= L and (L % p == 0 or (L + 2) % p == 0)) if (
                world % tp == 0) else ():
            rest = world // (tp * pp)
            for cp in (c for c in divisors(rest) if c == 1 or sequence_length >= LONG and c <= 16
                       and sequence_length % (2 * c) == 0):
                for ep in (e for e in divisors(rest) if e == 1 or shape.num_experts % e == 0 and shape.num_experts > 1):
                    for zero in choices.zero_stages:
                        if zero < 3 or pp == 1:
                            yield ParallelLayout(dp=rest // cp, pp=pp, cp=cp, tp=tp, ep=ep, zero_stage=zero,
                                                 etp=tp if shape.num_experts > 1 else 1)


def jobs(shape: Shape, cluster: Cluster, global_batch: int, sequence_length: int, choices: Choices = ALL,
         **how: Any) -> Iterator[Job]:
    """Those that can be. `how`: what else a Job is asked for, the same for all."""
    together = how.pop("sequence_parallel", True)
    for layout in layouts(shape, cluster, sequence_length, choices):
        if global_batch % layout.dp:
            continue
        rows = global_batch // layout.dp
        for micro_batch in choices.micro_batches:
            if rows % micro_batch:
                continue
            m = rows // micro_batch
            chunks = [v for v in choices.chunks if v == 1 or layout.pp > 1 and m % layout.pp == 0
                      and layout.pp * v <= shape.num_layers + 2]
            for v in chunks:
                if why_not(shape, cluster, layout, global_batch, micro_batch, sequence_length, v):
                    continue
                for recompute in choices.recompute:
                    yield Job(shape, cluster, layout, global_batch, micro_batch, sequence_length, v, "1f1b", recompute,
                              together and layout.tp > 1, **how)


def plan(model: Model | Shape, cluster: Cluster, global_batch: int, *, sequence_length: int = 0,
         precision: str = "bf16", gradient_bytes: int = 4, flash: bool = True, sequence_parallel: bool = True,
         software: Software = MEGATRON_CORE, choices: Choices = ALL, room: float = USABLE) -> list[Estimate]:
    """Estimates of all legal layouts that fit in memory, the shortest step first. `reasons_for` says why one is worse.

    Empty where none fits. global_batch: rows of a step. room: share of what a device can allocate that an estimate may
    fill; the rest is for fragments and for what the estimate misses.
    """
    shape = shape_of(model)
    at_least(global_batch, 1, "global_batch")
    s = sequence_length or shape.sequence_length
    rates, limit = rates_of(cluster, software, precision), positive_share(room, "room") * cluster.usable_bytes
    found = []
    for job in jobs(shape, cluster, global_batch, s, choices, precision=precision, gradient_bytes=gradient_bytes,
                    flash=flash, sequence_parallel=sequence_parallel, software=software):
        stages = stages_of(job, layer_pass(job, rates), head_pass(job, rates))
        memory = memory_bytes(job, stages)
        if sum(memory.values()) <= limit:
            found.append(Estimate(job, rates, FITTED, memory, step_seconds(job, rates)))
    return sorted(found, key=lambda each: (each.step_s, each.memory_bytes))


def pareto(plans: Sequence[Estimate]) -> list[Estimate]:
    """Those that no other beats in both time and memory, the fastest first."""
    front: list[Estimate] = []
    for each in sorted(plans, key=lambda each: (each.step_s, each.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front


WORDS = {"matmul": "products", "memory": "passes over memory", "tp": "tensor parallelism", "cp": "context parallelism",
         "ep": "expert parallelism", "launch": "waits for launches", "pp": "messages between stages",
         "bubble": "the bubble", "dp": "data parallelism's messages", "optimiser": "the optimiser"}
WORTH_SAYING = 0.01  # of the step


def reasons_for(estimate: Estimate, best: Estimate) -> list[str]:
    """Why `estimate` is slower than `best`, or what it gains: the causes that change, the largest change first."""
    change = {cause: estimate.seconds[cause] - best.seconds[cause] for cause in estimate.seconds}
    told = [cause for cause in sorted(change, key=lambda cause: -abs(change[cause]))
            if abs(change[cause]) > WORTH_SAYING * best.step_s]
    return [f"{WORDS[cause]} {change[cause] / best.step_s:+.0%} of the step{because(cause, estimate, best)}"
            for cause in told]


def because(cause: str, estimate: Estimate, best: Estimate) -> str:
    """What of the layout a change of this cause comes from, as far as one sentence can say."""
    here, there, G = estimate.job, best.job, estimate.job.cluster.devices_per_node
    if cause == "tp" and here.layout.tp > G >= there.layout.tp:
        return f": tp{here.layout.tp} leaves the node of {G}"
    if cause == "tp" and here.layout.tp != there.layout.tp:
        return f": tp{here.layout.tp}, not tp{there.layout.tp}"
    if cause == "bubble":
        return f": {here.num_microbatches} micro-batches through {here.layout.pp} stages of {here.v} chunks"
    if cause in ("matmul", "memory") and here.recompute != there.recompute:
        return f": recompute {here.recompute}, not {there.recompute}"
    if cause in ("matmul", "launch") and here.micro_batch != there.micro_batch:
        return f": products of {here.tokens_per_rank:.0f} tokens, not {there.tokens_per_rank:.0f}"
    if cause in ("dp", "optimiser") and here.layout.zero_stage != there.layout.zero_stage:
        return f": ZeRO-{here.layout.zero_stage}, not ZeRO-{there.layout.zero_stage}"
    return ""
