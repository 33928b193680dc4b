"""How fast one cluster is with one software: data sheets and measured curves, times the constants that apply."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt

from course_lib.costs.network import Network
from course_lib.planner.cluster import Cluster
from course_lib.planner.constants import FITTED, Constants
from course_lib.planner.software import Software


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

    def gathering_s(self, n: int) -> float:
        """Until `n` ranks are at a message: the fewer there must be, the sooner."""
        return 0.0 if n == 1 else self.call_s * n / self.num_ranks


@lru_cache(maxsize=256)
def rates_of(cluster: Cluster, software: Software, precision: str = "bf16", constants: Constants = FITTED) -> Rates:
    c, device = constants, cluster.device
    kind = "h200" if device.name == "H200" else "h100" if device.year >= 2022 else "a100"
    modern = device.year >= 2022
    slowed = cluster.power_share**c.power / (1 + c.spread * sqrt(2 * log(cluster.num_devices)))
    half = cluster.matmul_flops_per_s * getattr(c, f"matmul_{kind}") * slowed
    linear = half
    if precision == "fp8":
        linear *= 1 + c.fp8 * (cluster.peak_flops_per_s("fp8") / cluster.peak_flops_per_s() - 1)
    flash = {"flash1": c.flash1, "flash2": c.flash2_h100 if modern else c.flash2_a100,
             "flash3": c.flash3 if modern else c.flash2_a100}[software.attention]
    network = cluster.network(getattr(c, software.across), c.network, software.one_card)
    return Rates(
        linear, half, cluster.peak_flops_per_s() * flash * slowed, device.memory_bytes_per_s,
        device.memory_bytes_per_s, getattr(c, software.passes), network, getattr(c, software.launch),
        getattr(c, software.experts) if software.experts else 1.0, c.tp_hidden if software.overlaps_tensor else 0.0,
        getattr(c, software.copies) if software.copies else 0.0, c.drag, 0.0 if software.overlaps_stages else c.p2p_s,
        c.step_s)
