"""What of parameters, gradients and optimiser a rank holds: sharded, on the host, or of adapters alone."""

from __future__ import annotations

from course_lib.costs.memory import Memory, device_memory, lora_memory, training_memory
from course_lib.planner.job import Job
from course_lib.planner.step import (
    Stages,
    gathers_once,
    matrix_shares,
    numbers_of,
    rank_numbers,
    shards_layers,
    trained_of,
    vocabulary_numbers,
)

GATHERED_LAYERS = 2  # whole at a time under ZeRO-3: the one at work, the one that arrives
NOTHING = Memory(0, 0, 0)


def state_bytes(job: Job, layers: float, ends: int) -> dict[str, float]:
    """Parameters, gradients and the optimiser's state. ZeRO shards experts over the ranks that hold the same ones."""
    zero = 1 if gathers_once(job) else job.layout.zero_stage
    found, whole = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0), 0.0
    for index, (numbers, ranks, _) in enumerate(numbers_of(job)):
        numbers = layers * numbers + (vocabulary_numbers(job, ends) if index == 0 else 0.0)
        of_these = memory_of(job, numbers, zero, ranks, layers * adapters_of_layer(job, index)).by_kind()
        found, whole = {kind: found[kind] + of_these[kind] for kind in found}, whole + numbers
    if (gathers_once(job) or adds_up_whole(job)) and not job.lora_rank:
        found["gradients"] = 4 * whole
    if zero == 3 and shards_layers(job):
        found["parameters"] += 2 * gathered_numbers(job)
    return found


def adds_up_whole(job: Job) -> bool:
    """FSDP2 that reduces gradients after the last micro-batch adds those before up in 32 bits, unsharded
    (set_requires_gradient_sync(False), reduce_dtype=float32).
    """
    return job.software.adds_up_whole and job.num_microbatches > 1 and shards_layers(job)


def memory_of(job: Job, numbers: float, zero: int, ranks: int, adapters: float) -> Memory:
    """Bytes of `numbers` that `ranks` hold alike, of which `adapters` more are trained if the job has any."""
    precision = "pure 16-bit" if not job.master else "mixed, fp32 gradients" if job.gradient_bytes == 4 else "mixed"
    shards = job.shards(ranks)
    if not numbers:
        return NOTHING
    if job.lora_rank:
        return lora_memory(numbers, adapters, zero_stage=zero, num_devices=shards, optimizer=job.optimizer
                           ) if adapters else Memory(2 * numbers / (shards if zero == 3 else 1), 0, 0)
    if job.offload == "none":
        return training_memory(numbers, precision, zero, shards, optimizer=job.optimizer)
    stage = zero if job.plane > 1 else 2  # one rank's shard is all: what is done with it is the same in each stage
    if job.offload == "all":  # of ZeRO-3; else its shards of parameters stay
        return device_memory(numbers, shards, 3, precision, job.optimizer, offload=True)
    on_device = device_memory(numbers, shards, min(stage, 2), precision, job.optimizer, offload=True)
    return Memory(on_device.parameters / (shards if stage == 3 else 1), on_device.gradients, 0, host=on_device.host)


def adapters_of_layer(job: Job, index: int) -> float:
    """Numbers of the adapters beside the index-th part of numbers_of; there are none beside experts."""
    return trained_of(job)[0][0] if job.lora_rank and index == 0 else 0.0


def host_bytes(job: Job, stages: Stages) -> float:
    """What the process of the fullest rank keeps in the host's memory, of the optimiser and what it works on."""
    return sum(memory_of(job, numbers, job.layout.zero_stage, ranks, 0.0).host
               for numbers, ranks, _ in rank_numbers(job, stages)) if job.offload != "none" else 0.0


def gathered_numbers(job: Job) -> float:
    """Parameters that ZeRO-3 has whole at a time."""
    share = max(matrix_shares(job.shape)) if job.software.matrix_by_matrix else 1.0
    return GATHERED_LAYERS * share * sum(numbers for numbers, _, _ in numbers_of(job))
