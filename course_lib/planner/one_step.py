"""One measured step: the planner's constants for your cluster, from what you measured on it.

The constants are those of clusters that were published. A step of your own, a line of nccl-tests or one matrix product
moves them from where the fit has left them (fit.most_likely; no measurement of your own is taken for an outlier):

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from course_lib.costs.flops import matmul_seconds
from course_lib.facts.fact import above_zero, at_least
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import CONSTANTS, FITTED, MEGATRON_CORE, Constants, Software
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
class Measurement:
    """Seconds that were measured; `error`: how far they are believed; predict: what the planner says with constants."""

    name: str
    seconds: float
    error: float
    predict: Callable[[Constants], float]

    def __post_init__(self) -> None:
        above_zero(self.seconds, "measured seconds")


def learn(cluster: Cluster, software: Software = MEGATRON_CORE, *, steps: Sequence[tuple[Estimate | Job, float]] = (),
          all_reduces: Sequence[tuple[float, float, int, int]] = (),
          products: Sequence[tuple[int, int, int, float]] = (), constants: Constants = FITTED) -> Learned:
    """The constants of `cluster`, from what was measured on it. At least one measurement:

    steps: (an estimate or a job, seconds of a step). all_reduces: lines of nccl-tests' all_reduce_perf across nodes,
    (bytes, seconds, ranks, nodes). products: (m, k, n, seconds) of one 16-bit product (m, k) @ (k, n).

    ValueError for no measurement, for a job on another device, and for an all-reduce that stays in a node: no constant
    stands for the wires there.
    """
    found = [*(measured_step(of, seconds, cluster) for of, seconds in steps),
             *(measured_all_reduce(*line, cluster, software) for line in all_reduces),
             *(measured_product(*line, cluster, constants) for line in products)]
    if not found:
        raise ValueError("nothing was measured: expected steps, all_reduces or products, at least one of them")
    wide = WIRES * bool(all_reduces) + PRODUCTS * bool(products)
    # How much another cluster's constant may differ from the fitted one, as a share of it.
    doubts = [WIDE if c.name in wide else hypot(c.uncertainty, c.prior_uncertainty / 2) for c in CONSTANTS]

    def at(theta: Sequence[float]) -> Constants:
        return Constants(**{c.name: getattr(constants, c.name) * exp(t) for c, t in zip(CONSTANTS, theta)})

    def residuals_at(theta: Sequence[float]) -> list[float]:
        return [log(each.predict(at(theta)) / each.seconds) / each.error for each in found]

    theta, spread = most_likely(residuals_at, doubts, TOLERANCE, robust=False)
    told = tuple(BeforeAndAfter(each.name, each.seconds, each.predict(constants), each.predict(at(theta)))
                 for each in found)
    return Learned(at(theta), {c.name: s for c, s in zip(CONSTANTS, spread)},
                   {c.name: t / c.uncertainty for c, t in zip(CONSTANTS, theta)}, told, constants)


def measured_step(of: Estimate | Job, seconds: float, cluster: Cluster) -> Measurement:
    """A step of a job. ValueError where it is on other devices than the cluster's."""
    job = of.job if isinstance(of, Estimate) else of
    if job.cluster.device.name != cluster.device.name:
        raise ValueError(f"a step on {job.cluster.device.name} tells nothing of {cluster.device.name}: expected a job "
                         "on the cluster's own devices")
    return Measurement(f"a step of {describe(job)}", seconds, STEP_ERROR,
                       lambda constants: sum(step_seconds(job, rates_of_job(job, constants)).values()))


def measured_all_reduce(num_bytes: float, seconds: float, num_ranks: int, num_nodes: int, cluster: Cluster,
                        software: Software) -> Measurement:
    """An all-reduce. ValueError unless there are bytes, and two nodes or more with equally many ranks in each."""
    above_zero(num_bytes, "bytes of an all-reduce")
    in_node = cluster.devices_per_node
    if num_nodes < 2 or num_ranks < num_nodes or num_ranks % num_nodes or in_node % (num_ranks // num_nodes):
        raise ValueError(f"an all-reduce by {num_ranks} ranks on {num_nodes} nodes: expected two nodes or more, and in "
                         f"each a number of ranks that divides its {in_node} devices")

    def predict(constants: Constants) -> float:
        group = rates_of(cluster, software, constants=constants).network.group(
            num_ranks, in_node // (num_ranks // num_nodes))
        return group.seconds("all_reduce", num_bytes)

    return Measurement(f"all_reduce of {num_bytes / 1e6:,.0f} MB by {num_ranks} ranks on {num_nodes} nodes", seconds,
                       LINE_ERROR, predict)


def measured_product(m: int, k: int, n: int, seconds: float, cluster: Cluster, best: Constants) -> Measurement:
    """A product (m, k) @ (k, n). best: the constants at which this device makes products as the best that was measured
    on its kind. ValueError for sizes below one.
    """
    m, k, n = at_least(m, 1, "m"), at_least(k, 1, "k"), at_least(n, 1, "n")
    one = cluster.with_devices(1)

    def predict(constants: Constants) -> float:
        now, then = (rates_of(one, MEGATRON_CORE, constants=c).head_flops_per_s for c in (constants, best))
        reached = one.matmul_flops_per_s * one.power_share**constants.power * now / then  # of any software
        return matmul_seconds(m, k, n, reached, one.device.memory_bytes_per_s)

    return Measurement(f"a product of {m:,} x {k:,} x {n:,}", seconds, LINE_ERROR, predict)
