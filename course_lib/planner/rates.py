"""How fast one cluster is with one software: data sheets and measured curves, times the constants that apply.

Also what layers are timed with: seconds by cause, the forward and the backward pass that they make up, and the work of
a layer, which is all of a job that its time and its memory depend on, so that they are computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log, sqrt

from course_lib.costs.flops import matmul_seconds, pass_seconds
from course_lib.costs.links import crowding
from course_lib.costs.network import Network
from course_lib.facts import Shape
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import FITTED, Constants, Software
from course_lib.planner.job import Job


@dataclass(frozen=True)
class Seconds:
    """Seconds by cause. `matmul`: all products, attention's too; `memory`: passes over memory between them."""

    matmul: float = 0.0
    memory: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    launch: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all causes together."""
        return self.matmul + self.memory + self.tp + self.cp + self.ep + self.launch

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.matmul + other.matmul, self.memory + other.memory, self.tp + other.tp, self.cp + other.cp,
                       self.ep + other.ep, self.launch + other.launch)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.matmul * times, self.memory * times, self.tp * times, self.cp * times, self.ep * times,
                       self.launch * times)

    def with_launches(self, seconds: float, adds: bool = False) -> Seconds:
        """These seconds with the wait for kernels that the processor launches more slowly than the device runs them;
        or, `adds`, with the time of launching, where one processor does both.
        """
        return replace(self, launch=seconds if adds else max(0.0, seconds - self.total))


@dataclass(frozen=True)
class Pass:
    """`weight_s`: what the products of the weights' gradients take, of backward."""

    forward: Seconds
    backward: Seconds
    weight_s: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward.total + self.backward.total

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.weight_s + other.weight_s)

    def __mul__(self, times: float) -> Pass:
        return Pass(self.forward * times, self.backward * times, self.weight_s * times)


def hide_message(message_s: float, computing_s: float, drag: float = 0.0) -> float:
    """Seconds that a message costs beside computing: what is left of it, and the drag of what is hidden."""
    return max(0.0, message_s - computing_s) + drag * min(message_s, computing_s)


# Constants: of the gain that a precision promises in linear layers; of attention, by generation and kind of device
GAINS = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
FLASH = {"flash1": dict.fromkeys(("a100", "h100", "h200", "b200"), "flash1"),
         "flash2": {"a100": "flash2_a100", "h100": "flash2_h100", "h200": "flash2_h100", "b200": "flash2_h100"},
         "flash3": {"a100": "flash2_a100", "h100": "flash3", "h200": "flash3", "b200": "flash_b200"}}


@dataclass(frozen=True, eq=False)
class Rates:
    """All that seconds are computed from; a measured machine makes its own (planner.machine).

    flops_per_s: of linear layers; head_flops_per_s: of the read-out and unfused attention, in 16 bits;
    flash_flops_per_s: of attention that stores no scores. operand_bytes_per_s: of the matrices of a product, once each;
    memory_bytes_per_s: of passes over memory. launch_s: for a pass of one layer.
    """

    flops_per_s: float
    head_flops_per_s: float
    flash_flops_per_s: float
    operand_bytes_per_s: float
    memory_bytes_per_s: float
    passes: float
    network: Network
    launch_s: float = 0.0
    expert_share: float = 1.0
    tensor_hidden: float = 0.0
    tensor_copies: float = 0.0
    drag: float = 0.0
    p2p_s: float = 0.0
    step_s: float = 0.0
    call_s: float = 0.0  # until all of `num_ranks` are at a message, where they share processors
    num_ranks: int = 1
    number_bytes: int = 2  # of an activation and a weight where they are computed with
    launch_adds: bool = False  # the processor that launches is the one that computes
    row_passes: float = 4.0  # over the rows that are sent to experts, and over those that come back
    rows_s: float = 0.0  # until kernels flow again behind rows that were waited for
    crowding: float = 1.0  # how many times longer tensor parallelism's messages between nodes take beside other jobs

    def product_s(self, m: float, k: float, n: float, *, count: float = 1, flops_per_s: float = 0.0) -> float:
        """Seconds of `count` products (m, k) @ (k, n); flops_per_s: 0 for that of linear layers."""
        return matmul_seconds(m, k, n, flops_per_s or self.flops_per_s, self.operand_bytes_per_s, self.number_bytes,
                              count)

    def pass_s(self, num_bytes: float, passes: float = 1) -> float:
        """Seconds of `passes` over so many bytes of the device's memory."""
        return pass_seconds(num_bytes, self.memory_bytes_per_s, passes)

    def gathering_s(self, n: int) -> float:
        """Until `n` ranks are at a message: the fewer there must be, the sooner."""
        return 0.0 if n == 1 else self.call_s * n / self.num_ranks


@lru_cache(maxsize=256)
def rates_of(cluster: Cluster, software: Software, precision: str = "bf16", constants: Constants = FITTED) -> Rates:
    """FLOP/s, bytes/s and latencies of one device of the cluster with this software: data sheets times constants."""
    c, device = constants, cluster.device
    # The generation that its constants were measured on.
    kind = "h200" if device.name == "H200" else (
        "b200" if device.year >= 2024 else "h100" if device.year >= 2022 else "a100")
    slowed = cluster.power_share**c.power / (1 + c.spread * sqrt(2 * log(cluster.num_devices)))
    half = cluster.matmul_flops_per_s * getattr(c, f"matmul_{kind}") * slowed
    linear = half
    if precision in GAINS:
        promised = cluster.peak_flops_per_s(precision) / cluster.peak_flops_per_s()
        linear *= 1 + getattr(c, GAINS[precision]) * (promised - 1)
    flash = getattr(c, FLASH[software.attention][kind])
    network = cluster.network(c.across_cloud_s if cluster.is_cloud else c.across_s, c.network, software.one_card)
    return Rates(
        flops_per_s=linear, head_flops_per_s=half, flash_flops_per_s=cluster.peak_flops_per_s() * flash * slowed,
        operand_bytes_per_s=device.memory_bytes_per_s, memory_bytes_per_s=device.memory_bytes_per_s,
        passes=getattr(c, software.passes), network=network,
        launch_s=getattr(c, software.launch) if software.waits_for_launches else 0.0,
        expert_share=getattr(c, software.experts), tensor_hidden=c.tp_hidden if software.overlaps_tensor else 0.0,
        tensor_copies=getattr(c, software.copies) if software.copies else 0.0, drag=c.drag,
        p2p_s=0.0 if software.overlaps_stages else c.p2p_s, step_s=c.step_s, row_passes=c.row_passes,
        rows_s=c.rows_s if software.waits_for_rows else 0.0,
        crowding=crowding(cluster.num_nodes) if cluster.is_cloud else 1.0)


def rates_of_job(job: Job, constants: Constants = FITTED) -> Rates:
    """How fast the job's cluster is with its software and precision."""
    return rates_of(job.cluster, job.software, job.precision, constants)


@dataclass(frozen=True)
class Work:
    """n: tokens of the micro-batch on this rank. Others as in Job."""

    shape: Shape
    t: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    s: int
    recompute: str
    sequence_parallel: bool
    flash: bool
    dropout: bool
    imbalance: float
    software: Software
    precision: str
    modules: tuple[str, ...]

    @property
    def n(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.s / self.cp


def work_of(job: Job, recompute: str = "") -> Work:
    """The part of a job that decides the time of one layer; `recompute` in the place of the job's own, if given."""
    L = job.layout
    return Work(shape=job.shape, t=L.tp, cp=L.cp, ep=L.ep, etp=L.etp, micro_batch=job.micro_batch,
                s=job.sequence_length, recompute=recompute or job.recompute, sequence_parallel=job.sequence_parallel,
                flash=job.flash, dropout=job.dropout, imbalance=job.expert_imbalance, software=job.software,
                precision=job.precision, modules=job.recompute_modules)
