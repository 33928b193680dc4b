"""What a collective gets on a cluster: which wires its group uses, and how long it takes on them.

    n  ranks of the group, `stride` apart      k  nodes that they stand in      g  of them in one node, of its G devices
    M  bytes, as in links.py: of the whole message; of a point-to-point ring what each rank sends at once

Which wire? Bytes a second that each rank sends, in long messages (bytes_per_s, W in the chapters):

    inside a node                its own NVLink, or PCIe
    a ring across nodes          the g/G of the node's network cards that belong to the group: a ring enters and leaves
                                 each node once, and libraries make one ring for each card. Whole nodes have all of
                                 them; of eight strided groups at once each has one
    an all-to-all across nodes   its own card, for the share of its rows that leaves the node
    a point-to-point ring        one card, of the rank at the node's edge: all others wait for it
    inside a node that is a mesh the wires between the group's members: g - 1 of a device's G - 1, a message one
    out of a pod of nodes        one in `oversubscription` of what its cards carry together, shared by all groups

A switch that adds up (NVLink 4 and 5, more than four ranks of a node) halves what each device sends in an all-reduce: M
in place of 2(n-1)/n M. Across nodes libraries also go down a tree: few steps, 2M over the cards, M between two nodes.

A step of a ring takes the latency of the wire that it crosses; k - 1 of them cross the network. In an all-to-all one
latency of the network is seen, and a step inside for each other message.

Sources: NCCL, src/graph/tuning.cc; Thakur, Rabenseifner and Gropp 2005; Austin et al. 2025, How to Scale Your Model,
chapter GPUs. Held against facts.MEASURED_COLLECTIVES in tests/costs/test_network.py and in notebook 02.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from course_lib.costs.links import (
    Link,
    Reached,
    across_step_s,
    collective_time,
    hardware_link,
    reached_shares,
    sent_share,
    slow_down,
)
from course_lib.facts import TREE_STEP_LATENCY, Accelerator, MeasuredCollective, accelerator, interconnect
from course_lib.facts.fact import at_least

TREE_INSIDE_S, TREE_ACROSS_S = (TREE_STEP_LATENCY[kind].value * 1e-6 for kind in ("inside a node", "between nodes"))
FEWEST_IN_SWITCH = 5  # ranks of a node: with four nothing is gained, and nobody uses it (facts: 8 H200)
TIMED_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring", "send")


@dataclass(frozen=True)
class Network:
    """The wires of a cluster. inside: a device's into its node; card: one network card, of which a node has
    `cards_per_node`; alpha of both is one step of a ring. switch_s_per_byte: of M in an all-reduce that the node's
    switch adds up, None where it cannot. pod_devices: 0 for one pod. mesh: `inside` is the sum of a device's wires, one
    to each other device of its node.
    """

    devices_per_node: int
    inside: Link
    card: Link
    cards_per_node: int
    switch_s_per_byte: float | None = None
    pod_devices: int = 0
    oversubscription: float = 1.0
    mesh: bool = False

    def group(self, n: int, stride: int = 1) -> Group:
        """`n` ranks that stand `stride` apart, nodes filled one after the other. ValueError below 1.

        >>> network = network_of("H100")
        >>> [f"{network.group(n).bytes_per_s('all_gather') / 1e9:.0f} GB/s" for n in (8, 16)]  # one node, two nodes
        ['450 GB/s', '400 GB/s']
        >>> f"{network.group(2, stride=8).bytes_per_s('all_gather') / 1e9:.0f} GB/s"  # one device of each of two nodes
        '50 GB/s'
        """
        return strided_group(self, n, stride)

    def group_at(self, ranks: Sequence[int]) -> Group:
        """These ranks of a job that fills its nodes in the order of ranks. ValueError where there is none."""
        counts = [Counter(rank // size for rank in ranks) for size in
                  (self.devices_per_node, self.pod_devices or max(ranks, default=0) + 1)]
        at_least(len(ranks), 1, "number of ranks")
        return Group(self, len(ranks), *(of for count in counts for of in (len(count), max(count.values()))))

    @property
    def device_card_s_per_byte(self) -> float:
        """Seconds for each byte that a device sends to other nodes, over its share of its node's cards."""
        return self.card.beta_s_per_byte * self.devices_per_node / self.cards_per_node


@dataclass(frozen=True)
class Group:
    """n ranks that call a collective together, at most per_node of them in a node; Network.group makes it.

    Other groups like it fill the rest of their nodes, and send at the same time.
    """

    network: Network
    n: int
    nodes: int
    per_node: int
    pods: int = 1
    per_pod: int = 0

    # Seconds for each byte

    @cached_property
    def ring_s_per_byte(self) -> float:
        """Seconds for each byte that goes around a ring: the slower of the device's wire and the group's cards."""
        return self.inside_s_per_byte if self.nodes == 1 else max(self.inside_s_per_byte, self.cards_s_per_byte)

    @property
    def inside_s_per_byte(self) -> float:
        """Seconds for each byte that a member sends inside its node: in a mesh only the wires between members carry it.
        """
        wires = self.network
        unused = (wires.devices_per_node - 1) / (self.per_node - 1) if wires.mesh and self.per_node > 1 else 1
        return wires.inside.beta_s_per_byte * unused

    @property
    def cards_s_per_byte(self) -> float:
        """Seconds for each byte out of a node, on the cards of all its members, or out of a pod, on the group's share
        of what leads there.
        """
        per_card = self.network.device_card_s_per_byte
        out_of_pod = per_card * self.network.oversubscription / self.per_pod if self.pods > 1 else 0.0
        return max(per_card / self.per_node, out_of_pod)

    @cached_property
    def one_card_s_per_byte(self) -> float:
        """Seconds for each byte of a message to the next rank, when all groups send one at once."""
        wires = self.network
        if self.nodes == 1:
            return wires.inside.beta_s_per_byte * (wires.devices_per_node - 1 if wires.mesh else 1)
        found = [wires.card.beta_s_per_byte, wires.device_card_s_per_byte / self.per_node]  # if groups share a card
        if self.pods > 1:
            found.append(wires.device_card_s_per_byte * wires.oversubscription / self.per_pod)
        return max(found)

    @cached_property
    def all_to_all_s_per_byte(self) -> float:
        """Seconds for each byte of an all-to-all's M: what stays in the node, leaves it, and leaves the pod goes at
        once.
        """
        wires, per_card = self.network, self.network.device_card_s_per_byte
        found = [(self.per_node - 1) / self.n * self.inside_s_per_byte]
        if self.nodes > 1:
            fewest = max(1, self.n - self.per_node * (self.nodes - 1))  # in the last node, which may not be full
            found.append((self.n - fewest) / self.n * per_card)
        if self.pods > 1:
            found.append((self.n - self.per_pod) / self.n * per_card * wires.oversubscription)
        return max(found)

    @cached_property
    def tree_s_per_byte(self) -> float:
        """Seconds for each byte of an all-reduce's M: up and down a tree of nodes, in each of which its switch adds up,
        if it can.
        """
        if not self.has_switch:
            return 2 * self.ring_s_per_byte
        if self.nodes == 1:
            return self.network.switch_s_per_byte
        passes = 1 if self.nodes == 2 else 2  # of two nodes each adds up one half for both
        return max(self.network.switch_s_per_byte, passes * self.cards_s_per_byte)

    @property
    def has_switch(self) -> bool:
        """Whether the node's switch can add up for this group (NVLink SHARP), which takes a few members there."""
        return self.network.switch_s_per_byte is not None and self.per_node >= FEWEST_IN_SWITCH

    # Seconds

    @cached_property
    def around_s(self) -> float:
        """What a ring takes for a piece that has no bytes."""
        # A ring through k nodes leaves each once but for the last: the other steps stay inside, on the faster wire.
        crossings = self.nodes - 1
        return crossings * self.network.card.alpha_s + (self.n - 1 - crossings) * self.network.inside.alpha_s

    @property
    def tree_s(self) -> float:
        """What a tree takes up and down without bytes; inside a node there is none."""
        if self.nodes == 1:
            return 2 * self.around_s
        return 2 * ((self.per_node - 1) * TREE_INSIDE_S + (self.nodes - 1).bit_length() * TREE_ACROSS_S)

    @property
    def two_levels_s_per_byte(self) -> float:
        """Seconds for each byte of an all-gather's or a reduce-scatter's M on two levels at once: what the others'
        nodes have comes over the cards, each of which then shares its part in the node. NCCL goes around in rings
        instead.
        """
        inside = (self.per_node - 1) / self.per_node * self.inside_s_per_byte
        return max(inside, (self.n - self.per_node) / self.n * self.cards_s_per_byte if self.nodes > 1 else 0.0)

    def all_reduces_s(self, num_bytes: float, messages: float = 1) -> dict[str, float]:
        """What libraries choose from, by algorithm."""
        ring = messages * 2 * self.around_s + 2 * (self.n - 1) / self.n * num_bytes * self.ring_s_per_byte
        return {"ring": ring, "tree": messages * self.tree_s + num_bytes * self.tree_s_per_byte}

    def latency_s(self, op: str) -> float:
        """Seconds of one call of `op` that carries no bytes."""
        if self.n == 1:
            return 0.0
        wires = self.network
        if op == "all_reduce":
            return min(2 * self.around_s, self.tree_s)
        if op in ("all_gather", "reduce_scatter"):
            return self.around_s
        first = wires.inside.alpha_s if self.nodes == 1 else wires.card.alpha_s
        return first + (self.n - 2) * wires.inside.alpha_s if op == "all_to_all" else first

    def seconds_per_byte(self, op: str) -> float:
        """Seconds for each byte of M in long messages. ValueError for an operation not in TIMED_OPERATIONS."""
        if op not in TIMED_OPERATIONS:
            raise ValueError(f"op={op!r}: expected one of {', '.join(TIMED_OPERATIONS)}")
        if self.n == 1:
            return 0.0
        ring = (self.n - 1) / self.n * self.ring_s_per_byte
        return {"all_reduce": min(2 * ring, self.tree_s_per_byte), "all_gather": ring, "reduce_scatter": ring,
                "all_to_all": self.all_to_all_s_per_byte, "ring": self.one_card_s_per_byte,
                "send": self.one_card_s_per_byte}[op]

    def seconds(self, op: str, num_bytes: float, messages: float = 1) -> float:
        """Seconds of `op`, one of TIMED_OPERATIONS, on `num_bytes` in `messages` pieces, one after the other.

        "ring": each rank sends them to the next; "send": one does.
        """
        if op == "all_reduce" and self.n > 1:
            return min(self.all_reduces_s(num_bytes, messages).values())
        return messages * self.latency_s(op) + num_bytes * self.seconds_per_byte(op)

    def sending_s(self, op: str, sent_bytes: float, messages: float = 1) -> float:
        """Group.seconds for what each rank sends in place of M, counted as bus bandwidth counts it."""
        return self.seconds(op, sent_bytes / sent_share(op, self.n), messages) if self.n > 1 else 0.0

    # Bytes a second

    def bytes_per_s(self, op: str) -> float:
        """W: what each rank sends in long messages, counted as a bandwidth-optimal algorithm sends it (bus bandwidth).

        Infinite for a group of one.
        """
        return bus_bandwidth(op, self.n, 1.0, self.seconds_per_byte(op))

    def bus_bandwidth(self, op: str, num_bytes: float) -> float:
        """Bytes a second that each rank sends with messages of this size, as bytes_per_s counts;
        facts.MEASURED_COLLECTIVES holds the same, measured.
        """
        return bus_bandwidth(op, self.n, num_bytes, self.seconds(op, num_bytes))


@lru_cache(maxsize=8192)
def strided_group(network: Network, n: int, stride: int) -> Group:
    """Network.group, remembered: n ranks `stride` apart, in as few nodes and pods as that allows. ValueError below 1.
    """
    n, stride = at_least(n, 1, "n"), at_least(stride, 1, "stride")
    inside = []
    for devices in (network.devices_per_node, network.pod_devices or n * stride):
        members = n if n * stride <= devices else max(1, devices // stride)
        inside += [-(-n // members), members]
    return Group(network, n, *inside)


def all_reduce_s(wires: Network | Link, num_bytes: float, n: int) -> float:
    """Seconds of an all-reduce by n devices on `wires`: those of a cluster, or one link, all alike, around a ring."""
    if isinstance(wires, Link):
        return collective_time("all_reduce", "ring", num_bytes, n, wires)
    return wires.group(n).seconds("all_reduce", num_bytes)


def bus_bandwidth(op: str, n: int, num_bytes: float, seconds: float) -> float:
    """Bytes that each of n ranks sends in a bandwidth-optimal `op` on `num_bytes`, over the time."""
    return sent_share(op, n) * num_bytes / seconds if seconds else float("inf")


def network_of(device: str | Accelerator, devices_per_node: int = 8, between: str = "", cards_per_node: int = 0,
               pod_devices: int = 0, oversubscription: float = 1.0, as_reached: bool = False) -> Network:
    """Nodes of `device`, a name of facts.accelerator, at the rates of the data sheets.

    between: the network, a name of facts.interconnect; "" for what the device usually has. cards_per_node: 0 for as
    many as usual, of most devices one for each. as_reached: at the shares of the data sheets that collectives were seen
    to reach (reached). ValueError, with all names, for a device or a network that facts does not know.
    """
    device = accelerator(device) if isinstance(device, str) else device
    wire, between = interconnect(device.links[0]), between or device.links[-1]
    inside, card = hardware_link(wire.name), interconnect(between)
    shares = reached_shares() if as_reached else Reached(1.0, 1.0, 1.0, 0.0)
    G = at_least(devices_per_node, 1, "devices_per_node")
    switch = inside.beta_s_per_byte / shares.switch if wire.adds_up else None
    return Network(G, slow_down(inside, shares.ring),
                   slow_down(Link.of_rate(card.one_way_bytes_per_s, across_step_s(between)), shares.card),
                   at_least(cards_per_node, 0, "cards_per_node") or device.cards_per_node or G, switch,
                   pod_devices=pod_devices, oversubscription=oversubscription,
                   mesh=wire.kind == "mesh")


def measured_network(curve: MeasuredCollective) -> Network:
    """The wires of the cluster that `curve` was measured on, as far as they were used."""
    return network_of(curve.device, max(1, curve.num_devices // curve.num_nodes) if curve.num_nodes > 1 else 8,
                      curve.network, as_reached=True)
