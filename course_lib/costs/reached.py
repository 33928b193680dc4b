"""How much of their data sheets wires reach in a collective: four numbers, each read off one measured point.

Everything else that costs.network says of a cluster is a data sheet's or NCCL's own, so all other points that were
measured can contradict it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2

from course_lib.costs.links import Link, hardware_link, sent_share, step_s
from course_lib.facts import RING_ON_NVLINK4, SHARED_CLUSTER, MeasuredCollective, interconnect, measured_collectives


def measured_seconds(curve: MeasuredCollective, num_bytes: int) -> float:
    """What facts has as bus bandwidth, as the time of the call that was measured."""
    sent = sent_share(curve.op, curve.num_devices) * num_bytes
    return Link.of_rate(curve.bus_bandwidth[num_bytes].value * 1e9).seconds(sent)


@dataclass(frozen=True)
class Reached:
    """Shares of the data sheet. efa_step_s: a step from node to node over EFA, for which NCCL has no number."""

    ring: float  # of NVLink, by a ring
    switch: float  # of NVLink, by an all-reduce that the switch adds up
    card: float  # of a network card
    efa_step_s: float


@lru_cache(maxsize=1)
def reached_shares() -> Reached:
    """ring: 8 H200, 16 GiB, the switch turned off. switch: the same with it, where each sends M. card: an all-to-all of
    2 GB on two nodes, of which half crosses. efa_step_s: an all-gather of 32 MB on 32 nodes, less its bytes and steps
    inside.
    """
    nvlink, efa = hardware_link("NVLink 4 (H100)"), Link.of_rate(interconnect("EFA v2").one_way_bytes_per_s)
    ring = nvlink.beta_s_per_byte / Link.of_rate(RING_ON_NVLINK4.value * 1e9).beta_s_per_byte
    h200 = next(curve for curve in measured_collectives("all_reduce", "H200") if curve.num_devices == 8)
    largest = max(h200.bus_bandwidth)
    switch = nvlink.beta_s_per_byte * largest / measured_seconds(h200, largest)
    pairs = measured_collectives("all_to_all", "H100", 2)[0]
    largest = max(pairs.bus_bandwidth)
    card = efa.beta_s_per_byte * largest / 2 / measured_seconds(pairs, largest)
    many = measured_collectives("all_gather", "H100", 32)[0]
    shortest = min(many.bus_bandwidth)
    bytes_s = (many.num_devices - 1) / many.num_devices * shortest * efa.beta_s_per_byte / card / 8
    steps_s = measured_seconds(many, shortest) - bytes_s
    inside_s = (many.num_devices - many.num_nodes) * nvlink.alpha_s
    return Reached(ring, switch, card, (steps_s - inside_s) / (many.num_nodes - 1))


def across_step_s(between: str) -> float:
    """Seconds of a step of a ring from node to node."""
    wire = interconnect(between)
    return reached_shares().efa_step_s if wire.technology == "EFA" else step_s(wire)


SHARED_BYTES = 256 * 10**6  # of the messages of facts.SHARED_CLUSTER


@lru_cache(maxsize=1)
def measured_crowding() -> dict[int, float]:
    """By nodes: how many times longer an all-gather took on a shared cluster than on the same wires while nobody else
    was there.
    """
    alone = {curve.num_nodes: curve.bus_bandwidth[SHARED_BYTES].value
             for curve in measured_collectives("all_gather", "H100") if SHARED_BYTES in curve.bus_bandwidth}
    return {1: 1.0} | {nodes: alone[nodes] / SHARED_CLUSTER[nodes][1].value for nodes in sorted(alone)}


def crowding(num_nodes: int) -> float:
    """How many times longer a message takes on so many nodes of a shared cluster. Between two measured numbers of nodes
    by their logarithm; beyond the largest as there.
    """
    measured = measured_crowding()
    below = max(nodes for nodes in measured if nodes <= num_nodes)
    above = min((nodes for nodes in measured if nodes > num_nodes), default=below)
    share = log2(num_nodes / below) / log2(above / below) if above > below else 0.0
    return measured[below] * (measured[above] / measured[below]) ** share


def slower(link: Link, share: float) -> Link:
    """The link at a share of its rate, with the same latency."""
    return replace(link, beta_s_per_byte=link.beta_s_per_byte / share)
