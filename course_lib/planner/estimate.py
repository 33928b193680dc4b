"""The estimate: seconds of a step by cause, memory by kind, and what follows from them, each with a range.

A step is made of its layers, the pipeline's bubble, the messages of data parallelism, and the optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from course_lib.costs.flops import step_flops, utilisation
from course_lib.costs.money import dollars, kilowatt_hours
from course_lib.facts import PUE_AVERAGE, Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, Pass, Rates, Seconds, hide_message
from course_lib.planner.constants import FITTED, RANGES, Constants
from course_lib.planner.job import Job, kinds_of, rates_of_job, shape_of
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.memory import (
    Numbers,
    Stages,
    held_numbers,
    matrix_shares,
    memory_bytes,
    needed_bytes,
    rank_numbers,
    scatters_often,
    shards_layers,
    stages_at,
    stages_of,
    vocabulary_numbers,
)

CAUSES = ("matmul", "memory", "tp", "cp", "ep", "launch", "pp", "bubble", "dp", "optimiser")
MATRICES = 4  # of a layer, those that are sent on their own: q, k, v together, output, up (and gate), down
STATE_PASSES = 1.2  # over what the optimiser reads and writes


def step_seconds(job: Job, rates: Rates) -> dict[str, float]:
    """Seconds by cause, in the order of CAUSES; they add up to the step.

    The slowest stage works without a gap, m micro-batches; before and behind it the others fill the pipeline with the
    layers that they have, which is the bubble.
    """
    layer, head = layer_pass(job, rates), head_pass(job, rates)
    stages, m = stages_of(job, layer, head), job.num_microbatches
    both = layer.forward + layer.backward + Seconds(memory=accumulation_seconds(job, rates))
    ordinary = both * stages.ordinary
    last = both * stages.last + head.forward + head.backward
    # A pipeline goes at the pace of its slowest stage: that one's work counts m times, that of all others once.
    ends = job.layout.pp == 1 or last.total >= ordinary.total  # the last stage is the slowest
    slowest = last if ends else ordinary
    work = slowest * m
    others = both.total * (job.num_layers - (stages.last if ends else stages.ordinary)) + (
        0.0 if ends else head.forward.total + head.backward.total)
    return {
        "matmul": work.matmul, "memory": work.memory, "tp": work.tp, "cp": work.cp, "ep": work.ep,
        "launch": work.launch, "pp": stage_messages(job, rates),
        "bubble": job.bubble_seconds(others, slowest.total, layer.weight_s * stages.ordinary, slowest.launch),
        "dp": data_seconds(job, rates, layer, head, stages),
        "optimiser": optimiser_seconds(job, rates, rank_numbers(job, stages))}


def accumulation_seconds(job: Job, rates: Rates) -> float:
    """Adding a micro-batch's gradients of one layer to those there: two reads and a write."""
    if job.num_microbatches == 1:
        return 0.0
    scattered = scatters_often(job)
    numbers = sum(numbers / (ranks if scattered else 1) for numbers, ranks, _ in held_numbers(job))
    return rates.pass_s(3 * job.gradient_bytes * numbers)


def stage_messages(job: Job, rates: Rates) -> float:
    """Point-to-point: once through the pipeline and back, and each message where computing does not go on."""
    p = job.layout.pp
    if p == 1:
        return 0.0
    group = rates.network.group(p, job.layout.tp * job.plane)
    one = group.seconds("send", rates.number_bytes * job.tokens_per_rank * job.shape.hidden_size / job.layout.tp)
    waiting = 0.0 if job.software.overlaps_stages else 2 * job.v * job.num_microbatches * one
    return 2 * (p - 1) * one + waiting


def data_seconds(job: Job, rates: Rates, layer: Pass, head: Pass, stages: Stages) -> float:
    """What is left of the messages of gradients and parameters when computing has hidden what it can."""
    if job.plane == 1:
        return 0.0
    if shards_layers(job):
        return sharded_seconds(job, rates, layer, stages)
    software, stage = job.software, job.layout.zero_stage
    # Of v chunks the last one's gradients are ready while the others still have p micro-batches, or all, to go.
    p, v, m = job.layout.pp, job.v, job.num_microbatches
    backward = (layer.backward.total * stages.most + head.backward.total) * (min(p, m) * (v - 1) + 1) / v
    sent = rank_numbers(job, stages)
    if stage == 0:
        reduction = message_seconds(job, rates, "all_reduce", sent, job.gradient_bytes)
        return hide_message(reduction, backward, rates.drag) if software.overlaps_gradients else reduction
    messages = MATRICES * stages.most if software.matrix_by_matrix else 0.0  # and when backward has ended
    scatter = message_seconds(job, rates, "reduce_scatter", sent, job.gradient_bytes, messages)
    gather = message_seconds(job, rates, "all_gather", sent, rates.number_bytes, messages)
    overlaps = software.overlaps_gradients and not software.matrix_by_matrix
    shown = hide_message(scatter, backward, rates.drag) if overlaps else scatter
    times = job.num_microbatches if scatters_often(job) else 1  # gradients that are sharded, or that are reduced once
    if software.overlaps_parameters:
        gather = hide_message(gather, backward / 2, rates.drag)
    return times * shown + gather


def message_seconds(job: Job, rates: Rates, op: str, sent: Sequence[Numbers], bytes_per_number: int,
                    messages: float = 0.0) -> float:
    """Seconds of `op` on parameters or gradients among the ranks that have the same. messages: 0 for the software's
    size.
    """
    return sum(rates.network.group(ranks, stride).seconds(
        op, bytes_per_number * numbers, messages or max(1.0, bytes_per_number * numbers / job.software.message_bytes))
        for numbers, ranks, stride in sent)


def sharded_seconds(job: Job, rates: Rates, layer: Pass, stages: Stages) -> float:
    """ZeRO-3 gathers each layer before forward and before backward and scatters its gradient, in each micro-batch;
    ZeRO-2 of the same software gathers once a step. The first gather and the last scatter stand alone. Where matrices
    are sent one by one, each is fetched while the one before it works: a large one behind a small one does not hide.
    """
    messages, numbers = MATRICES if job.software.matrix_by_matrix else 1, held_numbers(job)
    gather = message_seconds(job, rates, "all_gather", numbers, rates.number_bytes, messages)
    scatter = message_seconds(job, rates, "reduce_scatter", numbers, job.gradient_bytes, messages)
    once, alone = job.layout.zero_stage == 2, gather + scatter
    forward = gather / job.num_microbatches if once else gather
    backward = scatter + (0.0 if once else gather)
    shares = matrix_shares(job.shape) if job.software.matrix_by_matrix else (1.0,)
    # One behind the other, so each share is weighed against the time of the product that runs meanwhile.
    beside = shares[-1:] + shares[:-1]  # a message hides behind the matrix before it
    shown = sum(hide_message(share * forward, hides * layer.forward.total, rates.drag)
                + hide_message(share * backward, hides * layer.backward.total, rates.drag)
                for share, hides in zip(shares, beside))
    vocabulary = [(vocabulary_numbers(job, 1 if job.shape.tied else 2), job.plane, job.layout.tp)]
    ends = message_seconds(job, rates, "all_gather", vocabulary, rates.number_bytes, 1)
    return job.num_microbatches * (shown * stages.most + 0.75 * ends + alone)


def optimiser_seconds(job: Job, rates: Rates, held: Sequence[Numbers]) -> float:
    """Reads and writes 32-bit weights and moments, reads gradients, writes weights: with Adam 30 bytes a number, 16
    where there are no 32-bit weights.
    """
    numbers = sum(numbers / (ranks if job.layout.zero_stage else 1) for numbers, ranks, _ in held)
    own = rates.step_s + 2 * rates.gathering_s(job.layout.world_size)  # norm and loss
    return rates.pass_s(numbers * (30 if job.master else 16), STATE_PASSES) + own


@dataclass(frozen=True)
class Estimate:
    """`memory`: bytes by kind on the fullest device. `seconds`: of a step, by cause; they add up to `step_s`.

    Dollars and kilowatt-hours are None where facts has no price, or no power.
    """

    job: Job
    rates: Rates
    constants: Constants | None
    memory: dict[str, float]
    seconds: dict[str, float]

    @property
    def layout(self) -> ParallelLayout:
        """How the job is cut."""
        return self.job.layout

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step, the sum of all causes."""
        return sum(self.seconds.values())

    @cached_property
    def memory_bytes(self) -> float:
        """Bytes on the fullest device, the sum of all kinds."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the device can allocate that, with what its allocator takes besides."""
        return needed_bytes(self.memory) <= self.job.cluster.usable_bytes

    @property
    def bubble(self) -> float:
        """Share of the step in which a device waits for others of its pipeline."""
        return self.seconds["bubble"] / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all devices together, a second."""
        return self.job.tokens / self.step_s

    def corrected(self, times: float) -> Estimate:
        """The same with every cause, and so the step, taking so many times as long."""
        return replace(self, seconds={cause: times * s for cause, s in self.seconds.items()})

    @property
    def num_devices(self) -> int:
        """Devices that the layout uses."""
        return self.job.layout.world_size

    @property
    def mfu(self) -> float:
        """The share of the 16-bit peak that the model's FLOPs reach, attention counted in full, s x s."""
        job = self.job
        flops = step_flops(job.shape, job.global_batch, job.sequence_length)
        return utilisation(flops, self.step_s, self.num_devices, job.cluster.peak_flops_per_s())

    def training_s(self, num_tokens: float) -> float:
        """Seconds of a training run on so many tokens."""
        return num_tokens / self.tokens_per_s

    def dollars(self, num_tokens: float) -> float | None:
        """At the cheapest rent that facts knows, without failures and checkpoints."""
        price = self.job.cluster.dollars_per_device_hour
        return None if price is None else dollars(self.training_s(num_tokens), self.num_devices, price)

    def kwh(self, num_tokens: float) -> float | None:
        """Kilowatt-hours of training on so many tokens, with the share of the server and of an average data centre;
        None where the device's watts are not known.
        """
        watts = self.job.cluster.watts_per_device
        return None if watts is None else kilowatt_hours(self.training_s(num_tokens), self.num_devices, watts,
                                                         PUE_AVERAGE.value)

    # How sure

    @cached_property
    def uncertainty(self) -> float | None:
        """Relative: two thirds of the published runs of the narrowest kind that has enough are not missed by more. None
        where no kind has: then nobody knows, and a step that is measured tells more than any range.
        """
        found = () if self.constants is None else (RANGES.get(kind) for kind in kinds_of(self.job))
        return next((spread for spread in found if spread is not None), None)

    @property
    def step_range_s(self) -> tuple[float, float] | None:
        """(low, high) of step_s: two thirds of true values lie between. None where no run is like it."""
        spread = self.uncertainty
        return None if spread is None else (self.step_s / (1 + spread), self.step_s * (1 + spread))

    def __str__(self) -> str:
        between = "" if self.step_range_s is None else " ({:.3g} to {:.3g})".format(*self.step_range_s)
        parts = sorted(((s, cause) for cause, s in self.seconds.items() if s > 0.005 * self.step_s), reverse=True)
        causes = ", ".join(f"{cause} {s / self.step_s:.0%}" for s, cause in parts)
        limit = self.job.cluster.usable_bytes
        return (f"{self.layout}, micro-batch {self.job.micro_batch}, recompute {self.job.recompute}: "
                f"{self.step_s:.3g} s a step{between}, MFU {self.mfu:.1%}, {causes}; "
                f"{self.memory_bytes / 2**30:.1f} of {limit / 2**30:.1f} GiB"
                f"{'' if self.fits else ', does not fit'}")


def estimate(model: Model | Shape, cluster: Cluster, layout: ParallelLayout, global_batch: int, micro_batch: int = 1, *,
             sequence_parallel: bool | None = None, constants: Constants = FITTED, rates: Rates | None = None,
             **more: Any) -> Estimate:
    """What a step takes and holds. Arguments as in Job, `more` its other fields: v, recompute, software, precision and
    so on; sequence_parallel=None: wherever there is tensor parallelism.

    `rates`: of a machine that was measured, in place of what facts and constants say of `cluster`.
    ValueError for a model without a shape, and for a layout that cannot be.

    >>> from course_lib.facts import model
    >>> from course_lib.planner import cluster
    >>> llama, nodes = model("Llama 3 8B"), cluster("H100", 64)
    >>> estimate(llama, nodes, ParallelLayout(dp=64), global_batch=256).fits
    False
    >>> estimate(llama, nodes, ParallelLayout(dp=64, zero_stage=2), global_batch=256).fits
    True
    """
    together = layout.tp > 1 if sequence_parallel is None else sequence_parallel
    job = Job(shape_of(model), cluster, layout, global_batch, micro_batch, sequence_parallel=together, **more)
    return estimate_job(job, constants, rates)


def estimate_job(job: Job, constants: Constants = FITTED, rates: Rates | None = None) -> Estimate:
    """The estimate of a checked Job. `rates` in the place of the cluster's data sheets, where this machine was
    measured.
    """
    used = rates or rates_of_job(job, constants)
    return Estimate(job, used, None if rates else constants, memory_bytes(job, stages_at(job, used)),
                    step_seconds(job, used))
