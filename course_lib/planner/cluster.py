"""A cluster: which devices, how many in a node, and the wires between them. All numbers come from course_lib.facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from course_lib.costs.checks import above_zero, at_least
from course_lib.costs.links import Link, fit_link
from course_lib.facts import (
    DEVICE_VARIANTS,
    MEASURED_ALL_REDUCE,
    MEASURED_MATMUL,
    RING_ON_NVLINK4,
    SYSTEMS,
    Accelerator,
    accelerator,
    hourly_prices,
    interconnect,
)

NVLINK_3 = "NVLink 3 (A100)"
# Where all-reduce was measured on these wires: the device of facts.MEASURED_ALL_REDUCE.
MEASURED_ON = {NVLINK_3: "A100", "NVLink 4 (H100)": "H200", "NVLink 5 (B200)": "B200"}
SAME_CHIP = {"A100 40GB": "A100", "H200": "H100"}  # for measured products, where only one of two was measured
TORUS_STEP_S = 1e-6


@dataclass(frozen=True, eq=False)
class Cluster:
    """`num_devices` of one kind in nodes of `devices_per_node`, all nodes on one network that nothing oversubscribes.

    node_bytes_per_s: out of a node, all cards together, as the data sheet says. Between TPUs there are no nodes: their
    wires make a torus, of which each axis of a layout has one direction. dollars_per_device_hour: None where facts
    knows no price. power_share: of the device's power that it is given.
    """

    device: Accelerator
    num_devices: int
    devices_per_node: int = 8
    node_bytes_per_s: float = 0.0  # 0: a card of the usual kind for each device
    power_share: float = 1.0

    def __post_init__(self) -> None:
        at_least(self.num_devices, 1, "num_devices")
        at_least(self.devices_per_node, 1, "devices_per_node")
        if self.node_bytes_per_s:
            above_zero(self.node_bytes_per_s, "node_bytes_per_s")

    @cached_property
    def inside(self) -> Link:
        return inner_link(self.device)

    @cached_property
    def gather_bytes_per_s(self) -> float:
        """What a ring carries inside a node: less than an all-reduce where the switch adds up (NVLink 4)."""
        rate = 1 / self.inside.beta_s_per_byte
        return min(rate, RING_ON_NVLINK4.value * 1e9) if "NVLink 4" in self.device.links[0] else rate

    @cached_property
    def network_bytes_per_s(self) -> float:
        if self.node_bytes_per_s:
            return self.node_bytes_per_s
        if self.is_torus:
            return self.devices_per_node / self.inside.beta_s_per_byte
        return self.devices_per_node * interconnect(self.device.links[-1]).one_way_bytes_per_s

    @property
    def is_torus(self) -> bool:
        return interconnect(self.device.links[0]).kind == "torus"

    @property
    def dollars_per_device_hour(self) -> float | None:
        """The cheapest rent that facts knows."""
        prices = hourly_prices(self.device.name)
        return prices[0].price.value if prices else None

    @property
    def watts_per_device(self) -> float | None:
        """With its share of the server, where facts has one; else the device's own."""
        for system in SYSTEMS:
            if system.device == self.device.name:
                return system.power.value / system.num_devices
        return self.device.power.value if self.device.power else None

    @property
    def matmul_flops_per_s(self) -> float:
        """The best 16-bit product ever measured; where none was, what the measured devices reach on average."""
        best = {m.device: m.achieved.value * 1e12 for m in MEASURED_MATMUL}
        name, peak = SAME_CHIP.get(self.device.name, self.device.name), self.peak_flops_per_s()
        shares = [value / accelerator(device).peak_flops_per_s("bf16") for device, value in best.items()]
        return best.get(name.split(" 96")[0], peak * sum(shares) / len(shares))

    def peak_flops_per_s(self, precision: str = "bf16") -> float:
        """Of the data sheet. bf16 and fp16 are the 16-bit format that the device has."""
        return self.device.peak_flops_per_s("fp8" if precision == "fp8" else self.device.half_precision)

    @property
    def usable_bytes(self) -> float:
        """What a process can allocate. Data sheets say GB and mean GiB; context and libraries take a bit over 1 %."""
        unit = 2**30 if self.device.kind == "GPU" else 1e9
        return 0.9875 * self.device.memory.value * unit

    def with_devices(self, num_devices: int) -> Cluster:
        return replace(self, num_devices=num_devices)


def inner_link(device: Accelerator) -> Link:
    """The wires inside a node: measured where facts has a curve, else the data sheet times what the A100's reach."""
    wire = interconnect(device.links[0])
    if wire.kind == "torus":  # a ring along one axis has two of the links
        return Link(TORUS_STEP_S, wire.neighbours / (2 * wire.one_way_bytes_per_s))
    if wire.name in MEASURED_ON:
        return measured_link(MEASURED_ON[wire.name])
    known = measured_link("A100")
    reached = 1 / known.beta_s_per_byte / interconnect(NVLINK_3).one_way_bytes_per_s
    return Link(known.alpha_s, 1 / (reached * wire.one_way_bytes_per_s))


def measured_link(device: str) -> Link:
    """alpha of one ring step and beta of the bytes sent, from a measured curve of all-reduces inside a node."""
    curve = next(c for c in MEASURED_ALL_REDUCE if (c.device, c.num_nodes) == (device, 1))
    n = curve.num_devices
    sent = [2 * (n - 1) / n * M for M in curve.bus_bandwidth]
    whole = fit_link(sent, [num / (rate.value * 1e9) for num, rate in zip(sent, curve.bus_bandwidth.values())])
    return Link(whole.alpha_s / (2 * (n - 1)), whole.beta_s_per_byte)


def cluster(name: str, num_devices: int, devices_per_node: int = 8, node_gbit_per_s: float = 0.0) -> Cluster:
    """`num_devices` of the device that facts calls `name`, with the network of its data sheet or the one given.

    ValueError, with all names, for a device that facts does not know.
    """
    variants = {v.name: v for v in DEVICE_VARIANTS}
    if name in variants:
        v = variants[name]
        return Cluster(v.device, num_devices, devices_per_node, node_gbit_per_s * 1e9 / 8, v.power_share)
    try:
        device = accelerator(name)
    except ValueError as unknown:
        raise ValueError(f"{unknown}, {', '.join(variants)}") from None
    return Cluster(device, num_devices, devices_per_node, node_gbit_per_s * 1e9 / 8)
