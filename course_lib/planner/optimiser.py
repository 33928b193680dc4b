"""What the optimiser's step takes on a rank, on the device or on its host."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.costs.kernels import pass_seconds
from course_lib.costs.memory import OPTIMIZERS, PRECISIONS
from course_lib.costs.offload import offload_seconds
from course_lib.planner.job import Job
from course_lib.planner.rates import Rates

STATE_PASSES = 1.2  # over what the optimiser reads and writes


def optimiser_seconds(job: Job, rates: Rates, trained: Sequence[tuple[float, int, int]]) -> float:
    """Reads and writes 32-bit weights and moments, reads gradients, writes weights: with Adam 30 bytes a number, on the
    device or on its host. trained: (numbers, ranks that have the same, how far apart these stand).
    """
    numbers = sum(numbers / (job.shards(ranks) if job.layout.zero_stage else 1) for numbers, ranks, _ in trained)
    num_bytes, calls = numbers * touched_bytes(job), 2 * rates.gathering_s(job.layout.world_size)  # norm and loss
    own = rates.step_s + calls
    if job.offload == "none":
        return pass_seconds(num_bytes, rates.memory_bytes_per_s, STATE_PASSES) + own
    return pass_seconds(num_bytes, job.cluster.host_memory_bytes_per_s, STATE_PASSES) + own + transfer_seconds(
        job, numbers, rates.number_bytes)


def touched_bytes(job: Job) -> int:
    """Bytes that the optimiser reads and writes for each number: those of Adam, less what other moments are smaller by.
    """
    kept = PRECISIONS["mixed" if job.master else "pure 16-bit"]
    smaller = OPTIMIZERS["adam"].state_bytes(kept) - OPTIMIZERS[job.optimizer].state_bytes(kept)
    return (30 if job.master else 16) - 2 * smaller


def transfer_seconds(job: Job, numbers: float, number_bytes: int) -> float:
    """Over the wire to the host, of the numbers that a rank steps on: gradients there, with ZeRO-2 and 3 in each
    micro-batch; new weights back, or, where they stay there, before both passes of each.
    """
    m, often = job.num_microbatches, job.layout.zero_stage >= 2 or job.plane == 1
    return offload_seconds(numbers, job.cluster.host_link_bytes_per_s, number_bytes * (m if often else 1),
                           number_bytes * (2 * m if job.offload == "all" else 1))
