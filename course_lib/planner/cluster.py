"""A cluster: which devices, how many in a node, the wires between them; and how fast it is with one software.

All numbers come from course_lib.facts, data sheets and measured curves, times the constants that apply. With the rates
stands what they make of work: seconds by cause, and the forward and the backward pass that these make up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import log, sqrt

from course_lib.costs.flops import matmul_seconds, pass_seconds
from course_lib.costs.links import (
    Link,
    across_step_s,
    crowding,
    fit_link,
    hardware_link,
    measured_seconds,
    rate_ratio,
    reached_shares,
    slow_down,
)
from course_lib.costs.network import Network
from course_lib.facts import (
    ACCELERATORS,
    DEVICE_VARIANTS,
    MEASURED_MATMUL,
    SYSTEMS,
    Accelerator,
    DeviceVariant,
    Interconnect,
    accelerator,
    find,
    hourly_prices,
    interconnect,
    measured_collectives,
)
from course_lib.facts.fact import above_zero, at_least
from course_lib.planner.constants import FITTED, Constants, Software

UNLIKE_ALL = "A100"  # whose measured all-reduces stand for wires that are like none that was measured
TORUS_STEP_S = 1e-6
PEAKS = {"fp8": "fp8", "mxfp8": "fp8", "fp4": "fp4", "nvfp4": "fp4"}  # of a precision; all others have 16 bits


@dataclass(frozen=True, eq=False)
class Cluster:
    """`num_devices` of one kind in nodes of `devices_per_node`, all nodes on one network.

    node_bytes_per_s: out of a node, all cards together, as the data sheet says. Between TPUs there are no nodes: their
    wires make a torus, of which each axis of a layout has one direction. dollars_per_device_hour: None where facts
    knows no price. power_share: of the device's power that it is given. between: the network, a name of facts.LINKS; ""
    for what the device usually has.
    """

    device: Accelerator
    num_devices: int
    devices_per_node: int = 8
    node_bytes_per_s: float = 0.0  # 0: a card of the usual kind for each device
    power_share: float = 1.0
    between: str = ""

    def __post_init__(self) -> None:
        at_least(self.num_devices, 1, "num_devices")
        at_least(self.devices_per_node, 1, "devices_per_node")
        if self.node_bytes_per_s:
            above_zero(self.node_bytes_per_s, "node_bytes_per_s")

    def network(self, across_s: float, share: float, one_card: bool = False) -> Network:
        """Its wires: across_s for a step from node to node, `share` of the data sheet's network. one_card: rings use
        one card of a node, and all its devices share it.
        """
        G = self.devices_per_node
        if self.is_torus:  # each axis of a layout has one direction, and there are no nodes to leave
            return Network(self.num_devices, self.inside, self.inside, self.num_devices)
        card = Link.of_rate(self.network_bytes_per_s / self.cards_per_node * share, across_s)
        return Network(G, self.inside, card, 1 if one_card else self.cards_per_node, self.switch_s_per_byte,
                       mesh=interconnect(self.device.links[0]).kind == "mesh")

    @cached_property
    def inside(self) -> Link:
        """The link that a ring gets inside a node."""
        return inner_link(self.device)

    @cached_property
    def switch_s_per_byte(self) -> float | None:
        """Seconds for each byte of an all-reduce in a node whose switch adds up, as measured; None where it cannot."""
        wire = interconnect(self.device.links[0])
        if not wire.adds_up:
            return None
        measured, curve = find_measured(wire)
        return curve.beta_s_per_byte * rate_ratio(measured, wire)

    @cached_property
    def network_bytes_per_s(self) -> float:
        """Out of a node, all cards together, as the data sheet says."""
        return self.node_bytes_per_s or self.cards_per_node * self.wire.one_way_bytes_per_s

    @property
    def wire(self) -> Interconnect:
        """The network between nodes, as facts has it."""
        return interconnect(self.between or self.device.links[-1])

    @property
    def is_cloud(self) -> bool:
        """Nodes are joined by a cloud's Ethernet, which other jobs use at the same time."""
        return self.wire.technology == "EFA"

    @property
    def num_nodes(self) -> int:
        """Nodes, the last of which may not be full."""
        return -(-self.num_devices // self.devices_per_node)

    @property
    def cards_per_node(self) -> int:
        """Network cards of a node: one for each device where the data sheet names no other number."""
        return self.device.cards_per_node or self.devices_per_node

    @property
    def is_torus(self) -> bool:
        """Whether devices have wires to their neighbours only, as TPUs do."""
        return interconnect(self.device.links[0]).kind == "torus"

    @property
    def dollars_per_device_hour(self) -> float | None:
        """The cheapest rent of a device that facts knows, in dollars an hour; None where it knows none."""
        prices = hourly_prices(self.device.name)
        return prices[0].price.value if prices else None

    @property
    def watts_per_device(self) -> float | None:
        """Watts of a device with its share of the server, where facts has one; else the device's own."""
        for system in SYSTEMS:
            if system.device == self.device.name:
                return system.power.value / system.num_devices
        return self.device.power.value if self.device.power else None

    @property
    def matmul_flops_per_s(self) -> float:
        """The best 16-bit product ever measured; where none was, of the peak what the next measured device reaches, by
        year: each generation reaches less of it.
        """
        name = self.device.chip or self.device.name
        near = {m.device: abs(accelerator(m.device).year - self.device.year) for m in MEASURED_MATMUL}
        measured = next(m for m in MEASURED_MATMUL if m.device == (name if name in near else min(near, key=near.get)))
        share = measured.achieved.value * 1e12 / accelerator(measured.device).peak_flops_per_s("bf16")
        return share * self.peak_flops_per_s()

    def peak_flops_per_s(self, precision: str = "bf16") -> float:
        """FLOP/s of the data sheet. bf16 and fp16 are the 16-bit format that the device has. ValueError where it has
        none.
        """
        return self.device.peak_flops_per_s(PEAKS.get(precision, self.device.half_precision))

    @property
    def usable_bytes(self) -> float:
        """What a process can allocate. Data sheets say GB and mean GiB; context and libraries take a bit over 1 %."""
        unit = 1e9 if self.device.kind == "TPU" else 2**30
        return 0.9875 * self.device.memory.value * unit

    def with_devices(self, num_devices: int) -> Cluster:
        """The same cluster with another number of devices."""
        return replace(self, num_devices=num_devices)


def inner_link(device: Accelerator) -> Link:
    """A ring inside a node: its latency as measured, or else the A100's; the data sheet's rate times what was reached.
    """
    wire = interconnect(device.links[0])
    if wire.kind == "torus":  # a ring along one axis has two of the links
        return Link.of_rate(2 * wire.one_way_bytes_per_s / wire.neighbours, TORUS_STEP_S)
    measured, curve = find_measured(wire)
    if wire.adds_up:  # the curve is not a ring's
        return replace(slow_down(hardware_link(wire.name), reached_shares().ring), alpha_s=curve.alpha_s / (2 * 7))
    ring = Link(curve.alpha_s / (2 * 7), curve.beta_s_per_byte / (2 * 7 / 8))
    share = hardware_link(measured.name).beta_s_per_byte / ring.beta_s_per_byte
    return slow_down(Link.of_rate(wire.one_way_bytes_per_s, ring.alpha_s), share)


def find_measured(wire: Interconnect) -> tuple[Interconnect, Link]:
    """(the wire of the same generation on which an all-reduce of eight in a node was measured at many sizes, alpha and
    beta of its M), fitted to that curve.
    """
    curves = {curve.device: curve for curve in measured_collectives("all_reduce", num_nodes=1)
              if curve.num_devices == 8 and len(curve.bus_bandwidth) > 1}
    wires = {device: interconnect(accelerator(device).links[0]) for device in curves}
    like = [device for device, other in wires.items()
            if (other.kind, other.name.split()[:2]) == (wire.kind, wire.name.split()[:2])]
    device = like[0] if like else UNLIKE_ALL
    curve = curves[device]
    return wires[device], fit_link([*curve.bus_bandwidth], [measured_seconds(curve, M) for M in curve.bus_bandwidth])


def cluster(name: str, num_devices: int, devices_per_node: int = 0, node_gbit_per_s: float = 0.0, *,
            between: str = "") -> Cluster:
    """`num_devices` of the device that facts calls `name`, with the network of its data sheet or the one given:
    `between`, a name of facts.LINKS, and how much it carries.

    devices_per_node: 0 for as many as the wire inside usually joins: 8, or the 72 of an NVL72. ValueError, with all
    names, the nearest first, for a device that facts does not know.

    >>> cluster("H100", 64).num_nodes
    8
    """
    found = find("accelerator", name, (*ACCELERATORS, *DEVICE_VARIANTS))
    device, power_share = (found.device, found.power_share) if isinstance(found, DeviceVariant) else (found, 1.0)
    return Cluster(device, num_devices, devices_per_node or device.per_node, node_gbit_per_s * 1e9 / 8, power_share,
                   between)


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


POWER = 0.5  # speed of a device whose power is capped: share of power to this; voltage constant 1, voltage free 1/3


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
    drag: float = 0.0
    step_s: float = 0.0
    call_s: float = 0.0  # until all of `num_ranks` are at a message, where they share processors
    num_ranks: int = 1
    number_bytes: int = 2  # of an activation and a weight where they are computed with
    launch_adds: bool = False  # the processor that launches is the one that computes
    row_passes: float = 4.0  # over the rows that are sent to experts, and over those that come back
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
    kind = "b200" if device.year >= 2024 else "h100" if device.year >= 2022 else "a100"  # that it was measured on
    slowed = cluster.power_share**POWER / (1 + c.spread * sqrt(2 * log(cluster.num_devices)))
    half = cluster.matmul_flops_per_s * getattr(c, f"matmul_{kind}") * slowed
    flash = getattr(c, "flash2" if software.attention == "flash3" and kind == "a100" else software.attention)
    return Rates(
        # Fewer bits gain all that they promise; what casts take is counted where they are made.
        flops_per_s=half * cluster.peak_flops_per_s(precision) / cluster.peak_flops_per_s(), head_flops_per_s=half,
        flash_flops_per_s=cluster.peak_flops_per_s() * flash * slowed,
        operand_bytes_per_s=device.memory_bytes_per_s, memory_bytes_per_s=device.memory_bytes_per_s,
        passes=getattr(c, software.passes),
        network=cluster.network(across_step_s("EFA v2" if cluster.is_cloud else "InfiniBand NDR"),
                                reached_shares().card, software.one_card),
        launch_s=getattr(c, software.launch) if software.launch else 0.0,
        expert_share=getattr(c, software.experts) if software.experts else 1.0,
        tensor_hidden=c.tp_hidden if software.overlaps_tensor else 0.0, drag=c.drag, step_s=c.step_s,
        row_passes=c.row_passes, crowding=crowding(cluster.num_nodes) if cluster.is_cloud else 1.0)
