"""One measured step: the planner's constants for your cluster, from what you measured on it.

The constants are those of clusters that were published. A step of your own, a line of nccl-tests or one matrix product
moves them from where the fit has left them (planner.least_squares; no measurement of your own is taken for an outlier):

    doubt of a constant     its uncertainty after the fit, and half of what its prior left open: so much may another
                            cluster differ from the published ones
    a step                  is believed to 15 %: what is particular to its layout must not move what all layouts share
    an all-reduce           is believed to 5 %, and the network's constants may be anything near a factor of two
    a matrix product        the same for what the device's products reach

The 15 % and the half were chosen on the published rows, by what one of a cluster's runs says of its others
(planner.validate --one-step). One step cannot tell apart two causes that it has both: it moves what is doubted most and
what it depends on most. More steps, of unlike layouts, tell more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from course_lib.costs.flops import matmul_seconds
from course_lib.costs.numbers import above_zero, at_least
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import CONSTANTS, FITTED, MEGATRON_CORE, Constant, Constants, Software
from course_lib.planner.estimate import Estimate
from course_lib.planner.fit import most_likely
from course_lib.planner.job import Job
from course_lib.planner.rates import rates_of, rates_of_job
from course_lib.planner.rows import describe
from course_lib.planner.step import step_seconds

STEP_ERROR, LINE_ERROR = 0.15, 0.05
WIRES = "network", "across_s", "across_cloud_s"
PRODUCTS = tuple(constant.name for constant in CONSTANTS if constant.name.startswith("matmul_"))
WIDE = 0.7  # log 2: of a constant that a line measures alone
TOLERANCE = 1e-6
SHOWN = 0.1  # of its uncertainty: a constant that moves less is not told


@dataclass(frozen=True)
class BeforeAndAfter:
    """One measurement in words, with what the planner said before it was known, and says now."""

    name: str
    seconds: float
    before_s: float
    after_s: float

    def __str__(self) -> str:
        before, after = (s / self.seconds - 1 for s in (self.before_s, self.after_s))
        return f"{self.name}: {self.seconds:.4g} s measured, {before:+z.0%} off before, {after:+z.0%} after"


@dataclass(frozen=True)
class Learned:
    """`constants`: for `estimate(..., constants=...)`. `uncertainty`: relative, by name, now. `moved`: by name, in
    uncertainties that the fit has left.
    """

    constants: Constants
    uncertainty: dict[str, float]
    moved: dict[str, float]
    measured: tuple[BeforeAndAfter, ...]
    started_at: Constants

    def __str__(self) -> str:
        lines = [str(each) for each in self.measured]
        for name in sorted(self.moved, key=lambda name: -abs(self.moved[name])):
            if abs(self.moved[name]) >= SHOWN:
                was, now = getattr(self.started_at, name), getattr(self.constants, name)
                lines.append(f"    {name:20s} {was:<10.4g} -> {now:<10.4g} {self.moved[name]:+5.1f} uncertainties")
        return "\n".join(lines)


@dataclass(frozen=True)
class StepOf:
    """A step of a job, to be compared with the seconds that were measured."""

    job: Job

    def seconds(self, constants: Constants) -> float:
        """What the planner predicts for it with these constants."""
        return sum(step_seconds(self.job, rates_of_job(self.job, constants)).values())

    def __str__(self) -> str:
        return f"a step of {describe(self.job)}"


@dataclass(frozen=True)
class AllReduceOf:
    """An all-reduce of so many bytes by ranks on several nodes. ValueError unless there are bytes."""

    cluster: Cluster
    software: Software
    num_bytes: float
    num_ranks: int
    num_nodes: int

    def __post_init__(self) -> None:
        above_zero(self.num_bytes, "bytes of an all-reduce")

    def seconds(self, constants: Constants) -> float:
        """What the planner predicts for it with these constants."""
        network = rates_of(self.cluster, self.software, constants=constants).network
        stride = self.cluster.devices_per_node // (self.num_ranks // self.num_nodes)
        return network.group(self.num_ranks, stride).seconds("all_reduce", self.num_bytes)

    def __str__(self) -> str:
        return f"all_reduce of {self.num_bytes / 1e6:,.0f} MB by {self.num_ranks} ranks on {self.num_nodes} nodes"


@dataclass(frozen=True)
class ProductOf:
    """`best`: the constants at which this device makes products as the best that was measured on its kind."""

    cluster: Cluster
    best: Constants
    m: int
    k: int
    n: int

    def __post_init__(self) -> None:
        for name in ("m", "k", "n"):
            at_least(getattr(self, name), 1, name)

    def seconds(self, constants: Constants) -> float:
        """What the planner predicts for it with these constants."""
        one, any_software = self.cluster.with_devices(1), MEGATRON_CORE
        now, then = (rates_of(one, any_software, constants=c).head_flops_per_s for c in (constants, self.best))
        reached = one.matmul_flops_per_s * one.power_share**constants.power * now / then
        return matmul_seconds(self.m, self.k, self.n, reached, one.device.memory_bytes_per_s)

    def __str__(self) -> str:
        return f"a product of {self.m:,} x {self.k:,} x {self.n:,}"


Measurement = tuple[StepOf | AllReduceOf | ProductOf, float, float]  # seconds, and how far they are believed


def learn(cluster: Cluster, software: Software = MEGATRON_CORE, *, steps: Sequence[tuple[Estimate | Job, float]] = (),
          all_reduces: Sequence[tuple[float, float, int, int]] = (),
          products: Sequence[tuple[int, int, int, float]] = (), constants: Constants = FITTED) -> Learned:
    """The constants of `cluster`, from what was measured on it. At least one measurement:

    steps: (an estimate or a job, seconds of a step). all_reduces: lines of nccl-tests' all_reduce_perf across nodes,
    (bytes, seconds, ranks, nodes). products: (m, k, n, seconds) of one 16-bit product (m, k) @ (k, n).

    ValueError for no measurement, for a job on another device, and for an all-reduce that stays in a node: no constant
    stands for the wires there.
    """
    found = [*((StepOf(checked_job(of, cluster)), seconds, STEP_ERROR) for of, seconds in steps),
             *((AllReduceOf(cluster, software, num_bytes, *checked_ranks(cluster, ranks, nodes)), seconds, LINE_ERROR)
               for num_bytes, seconds, ranks, nodes in all_reduces),
             *((ProductOf(cluster, constants, m, k, n), seconds, LINE_ERROR) for m, k, n, seconds in products)]
    if not found:
        raise ValueError("nothing was measured: expected steps, all_reduces or products, at least one of them")
    for _, seconds, _ in found:
        above_zero(seconds, "measured seconds")
    wide = WIRES * bool(all_reduces) + PRODUCTS * bool(products)
    return most_likely_for(found, constants, [doubt(constant, wide) for constant in CONSTANTS])


def doubt(constant: Constant, wide: Sequence[str]) -> float:
    """How much another cluster's constant may differ from the fitted one, as a share of it."""
    return WIDE if constant.name in wide else hypot(constant.uncertainty, constant.prior_uncertainty / 2)


def most_likely_for(found: Sequence[Measurement], start: Constants,
                    sigma: Sequence[float]) -> Learned:
    """The constants that fit the measurements best, beginning at `start`; `sigma`: how far each may go, as a log."""

    def at(theta: Sequence[float]) -> Constants:
        return Constants(**{c.name: getattr(start, c.name) * exp(t) for c, t in zip(CONSTANTS, theta)})

    def residuals_at(theta: Sequence[float]) -> list[float]:
        return [log(of.seconds(at(theta)) / seconds) / error for of, seconds, error in found]

    theta, spread = most_likely(residuals_at, sigma, TOLERANCE, robust=False)
    return Learned(
        at(theta), {c.name: s for c, s in zip(CONSTANTS, spread)},
        {c.name: t / c.uncertainty for c, t in zip(CONSTANTS, theta)},
        tuple(BeforeAndAfter(str(of), seconds, of.seconds(start), of.seconds(at(theta))) for of, seconds, _ in found),
        start)


def checked_job(of: Estimate | Job, cluster: Cluster) -> Job:
    """The job of an estimate or itself. ValueError where it is on other devices than the cluster's."""
    job = of.job if isinstance(of, Estimate) else of
    if job.cluster.device.name != cluster.device.name:
        raise ValueError(f"a step on {job.cluster.device.name} tells nothing of {cluster.device.name}: expected a job "
                         "on the cluster's own devices")
    return job


def checked_ranks(cluster: Cluster, num_ranks: int, num_nodes: int) -> tuple[int, int]:
    """Both numbers. ValueError unless there are two nodes or more with equally many ranks in each."""
    in_node = cluster.devices_per_node
    if num_nodes < 2 or num_ranks < num_nodes or num_ranks % num_nodes or in_node % (num_ranks // num_nodes):
        raise ValueError(f"an all-reduce by {num_ranks} ranks on {num_nodes} nodes: expected two nodes or more, and in "
                         f"each a number of ranks that divides its {in_node} devices")
    return num_ranks, num_nodes
