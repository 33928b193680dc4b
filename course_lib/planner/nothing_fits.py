"""Why there is no plan at all, and what would make one: what saves memory at a price, or more devices."""

from __future__ import annotations

from dataclasses import replace

from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import Asked, schedules
from course_lib.planner.job import Job
from course_lib.planner.search import bytes_of, leanest

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
