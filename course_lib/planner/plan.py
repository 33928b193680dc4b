"""Plans: all layouts of a model on a cluster that can be built and fit, the best first.

Why one plan is slower than another: the causes that change, and what of the layout each change comes from.

Why there is no plan at all, and what would make one: what saves memory at a price, or more devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from course_lib.facts import Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import Asked, ask, schedules
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job
from course_lib.planner.search import SLOWEST, bytes_of, leanest, search

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
    if cause == "bubble":
        return f": {here.num_microbatches} micro-batches through {here.layout.pp} stages of {here.v} chunks"
    if cause in ("matmul", "memory") and policy(estimate) != policy(best):
        return f": recompute {policy(estimate)}, not {policy(best)}"
    slower = estimate.seconds[cause] > best.seconds[cause]
    if cause in ("matmul", "launch") and here.tokens_per_rank != there.tokens_per_rank and (
            slower == (here.tokens_per_rank < there.tokens_per_rank)):  # small products are slow
        return f": products of {here.tokens_per_rank:.0f} tokens, not {there.tokens_per_rank:.0f}"
    if cause == "matmul" and here.layout.pp != there.layout.pp:
        return f": the fullest of {here.layout.pp} stages, not of {there.layout.pp}"
    if cause in ("matmul", "dp", "optimiser") and saving(estimate) != saving(best):
        return f": {saving(estimate) or 'nothing saved'}, not {saving(best) or 'nothing saved'}"
    if cause in ("dp", "optimiser") and here.layout.zero_stage != there.layout.zero_stage:
        return f": ZeRO-{here.layout.zero_stage}, not ZeRO-{there.layout.zero_stage}"
    if cause in ("tp", "cp", "ep", "dp") and size(estimate, cause) != size(best, cause):
        return f": {cause}{size(estimate, cause)}, not {cause}{size(best, cause)}"
    return ""


def size(estimate: Estimate, axis: str) -> int:
    """The number of ranks along `axis`."""
    return getattr(estimate.layout, axis)


def saving(estimate: Estimate) -> str:
    """What saves memory since it was asked for: "adam8bit, offload optimizer, LoRA 16, 4 replicas"; "" for nothing."""
    job = estimate.job
    told = (job.optimizer if job.optimizer != "adam" else "", f"offload {job.offload}" * (job.offload != "none"),
            f"LoRA {job.lora_rank}" * (job.lora_rank > 0), f"{job.replicas} replicas" * (job.replicas > 1))
    return ", ".join(filter(None, told))


def policy(estimate: Estimate) -> str:
    """What is made again: "none", "selective", "full", "3 layers" of each stage, or modules of each layer."""
    layers = estimate.job.recompute_layers
    if estimate.job.recompute_modules:
        return "+".join(estimate.job.recompute_modules)
    return estimate.job.recompute if not layers else f"{layers} layer{'s' * (layers > 1)}"


GIB = 2**30
MOST_DOUBLINGS = 8
LORA_RANK = 16  # that is tried
SAVED = (("an 8-bit optimiser", "optimizers", "adam8bit"), ("the optimiser on the host", "offload", "optimizer"),
         ("the optimiser and the parameters on the host", "offload", "all"),
         (f"adapters of rank {LORA_RANK} in place of the whole model (LoRA)", "lora_ranks", LORA_RANK))


def reason_of_none(asked: Asked) -> str:
    """Why no layout of all can be used, and how many devices would do."""
    jobs = leanest_jobs(asked)
    where = f"{asked.cluster.num_devices:,} {asked.cluster.device.name}"
    if not jobs:
        return (f"no layout of {where} divides the model's {asked.shape.num_layers} layers and {asked.shape.num_heads} "
                f"heads and a batch of {asked.global_batch} rows: expected other numbers, or fewer axes that are fixed")
    job = min(jobs, key=lambda each: bytes_of(each, asked))
    told = (f"no layout fits on {where}: {job.layout}, which needs least, takes {bytes_of(job, asked) / GIB:,.1f} of "
            f"{asked.limit_bytes / GIB:.1f} GiB with micro-batch {job.micro_batch}, recompute {job.recompute}")
    enough = devices_enough(asked)
    if ways := ways_to_save(asked):
        told += "; it would with " + ", or with ".join(ways)
    return told + (f"; {enough:,} devices would do" if enough else "; shorter rows or another device would help")


def ways_to_save(asked: Asked) -> list[str]:
    """What of the things that are only tried when asked for would let something fit, each alone."""
    found = []
    for words, choice, value in SAVED:
        changed = replace(asked, choices=replace(asked.choices, **{choice: (value,)}))
        if any(bytes_of(job, changed) <= changed.limit_bytes for job in leanest_jobs(changed)):
            found.append(words)
    return found


def leanest_jobs(asked: Asked) -> list[Job]:
    """For each layout the job that needs least memory."""
    found: dict[ParallelLayout, Job | None] = {}
    world = asked.cluster.num_devices
    for job in schedules(asked, range(world // 2 + 1, world + 1)):
        if job.layout not in found:
            found[job.layout] = leanest(job, asked)
    return [job for job in found.values() if job]


def devices_enough(asked: Asked) -> int:
    """How often the devices must be doubled until something fits; 0 where that does not help."""
    for doublings in range(1, MOST_DOUBLINGS + 1):
        larger = replace(asked, cluster=asked.cluster.with_devices(asked.cluster.num_devices * 2**doublings))
        # Doubling, and not one more device at a time: layouts divide powers of two, and ten looks are enough for a
        # thousand.
        if any(bytes_of(job, larger) <= larger.limit_bytes for job in leanest_jobs(larger)):
            return larger.cluster.num_devices
    return 0


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

    @cached_property
    def reason(self) -> str:
        """Why there is none, and what would help; "" where there are plans."""
        return "" if self else reason_of_none(self.asked)

    def __getitem__(self, index: Any) -> Any:
        if not self and not isinstance(index, slice):
            raise IndexError(self.reason)
        return super().__getitem__(index)


def plan(model: Model | Shape, cluster: Cluster, global_batch: int, *, slowest: float = SLOWEST, **how: Any) -> Plans:
    """Estimates of all layouts that can be built, fit, and take at most `slowest` times as long as the best; ties with
    the first of them simplest first. `reasons_for` says why one is worse, `why_not` why one is missing.

    Where the model does not divide the devices, plans use fewer (Plans.idle_devices). An empty one has a `reason`.
    global_batch: rows of a step. choices: what the search may choose from. room: share of what a device can allocate
    that an estimate may fill, 0.9 of it; the rest is for fragments and for what the estimate misses. Others as in Job:
    sequence_length, precision, software, gradient_bytes, flash, sequence_parallel (wherever there is tensor
    parallelism), offload and so on.

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
    found, nearly = search(asked, slowest)
    return Plans(found, asked, nearly)
