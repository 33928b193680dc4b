"""The estimate: memory by kind, seconds by cause, and what follows from them, each with a range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, log
from typing import Any

from course_lib.costs.flops import step_flops, utilisation
from course_lib.costs.money import dollars, kilowatt_hours
from course_lib.facts import PUE_AVERAGE, Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import CONSTANTS, FITTED, Constants
from course_lib.planner.job import Job, shape_of
from course_lib.planner.memory import memory_bytes, needed_bytes
from course_lib.planner.rates import Rates, rates_of_job
from course_lib.planner.stages import stages_at
from course_lib.planner.step import step_seconds

# Relative: what rows that constants were fitted on are missed by, the root of the mean square of nine tenths of them
UNEXPLAINED = 0.047
CHANGE = 1e-3


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
    def uncertainty(self) -> float:
        """Relative, one standard deviation: each constant moved by its own, and what no constant explains.

        That alone for rates that were measured."""
        if self.constants is None:
            return UNEXPLAINED
        moved = []
        for c in CONSTANTS:
            changed = replace(self.constants, **{c.name: getattr(self.constants, c.name) * (1 + CHANGE)})
            step_s = sum(step_seconds(self.job, rates_of_job(self.job, changed)).values())
            moved.append(log(step_s / self.step_s) / CHANGE * c.uncertainty)
        return hypot(UNEXPLAINED, *moved)

    def range_of(self, value: float) -> tuple[float, float]:
        """Two thirds of true values lie in it: for a number that is proportional to time or to its inverse."""
        return value * exp(-self.uncertainty), value * exp(self.uncertainty)

    @property
    def step_range_s(self) -> tuple[float, float]:
        """(low, high) of step_s: two thirds of true values lie between."""
        return self.range_of(self.step_s)

    def __str__(self) -> str:
        low, high = self.step_range_s
        parts = sorted(((s, cause) for cause, s in self.seconds.items() if s > 0.005 * self.step_s), reverse=True)
        causes = ", ".join(f"{cause} {s / self.step_s:.0%}" for s, cause in parts)
        limit = self.job.cluster.usable_bytes
        return (f"{self.layout}, micro-batch {self.job.micro_batch}, recompute {self.job.recompute}: "
                f"{self.step_s:.3g} s a step ({low:.3g} to {high:.3g}), MFU {self.mfu:.1%}, {causes}; "
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
