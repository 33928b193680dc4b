"""Groups that pass through nodes: what each member gets of the wires inside a node, and of those between nodes.

    n  members of the group     g  of them in one node     G  devices in a node     N  bytes/s out of a node, all cards

Ranks that stand `stride` apart make a group, so that G/g groups share a node's network cards. A ring enters and leaves
each node once, and libraries make one ring for each card: a group's ring has g/G of N, or what the wires inside carry
where that is less. A piece that goes around crosses the network once for each further node, and takes the wires inside
for the other steps: 16 ranks on 2 nodes wait less than 16 ranks on 16. All-reduces over many nodes may go up and down a
tree instead.

Sources: NCCL's src/graph/tuning.cc counts latencies so; measured curves (facts.all_reduce): all-gathers of 32 MB on 2
to 32 nodes take 75 us more for each node, of which seven steps inside are 21.
"""

from dataclasses import dataclass
from functools import lru_cache

from course_lib.costs.checks import at_least
from course_lib.costs.links import Link

TREE_INSIDE_S, TREE_ACROSS_S = 28e-6, 50e-6  # a step of a tree, which passes on pieces of 256 kB: NCCL, 2020


@dataclass(frozen=True)
class GroupLink:
    """The links of one group: seconds of a step of its ring inside a node and across the network, bytes/s that a member
    sends in an all-reduce, and in an all-gather, a reduce-scatter or a message (a switch that adds up itself helps the
    former alone).
    """

    n: int
    nodes: int
    inside_s: float
    across_s: float
    reduce_bytes_per_s: float
    bytes_per_s: float

    @property
    def around_s(self) -> float:
        """What a ring takes for a piece that has no bytes."""
        crossings = self.nodes - 1
        return crossings * self.across_s + (self.n - 1 - crossings) * self.inside_s

    def gather(self, num_bytes: float, messages: float = 1) -> float:
        """All-gather or reduce-scatter of `num_bytes`, the whole, in `messages` pieces, one after the other."""
        if self.n == 1:
            return 0.0
        return messages * self.around_s + (self.n - 1) / self.n * num_bytes / self.bytes_per_s

    def all_reduce(self, num_bytes: float, messages: float = 1) -> float:
        if self.n == 1:
            return 0.0
        one_way_s = self.around_s
        if self.nodes > 1:
            one_way_s = min(one_way_s, (-(-self.n // self.nodes) - 1) * TREE_INSIDE_S + (
                self.nodes - 1).bit_length() * TREE_ACROSS_S)
        return messages * 2 * one_way_s + 2 * (self.n - 1) / self.n * num_bytes / self.reduce_bytes_per_s

    def send(self, num_bytes: float) -> float:
        """One message to the next member."""
        if self.n == 1:
            return 0.0
        return (self.across_s if self.nodes > 1 else self.inside_s) + num_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Wires:
    """Of a cluster. `inside`: one link of a ring in a node; `gather_bytes_per_s`: the same where no switch adds up.
    across_s: for a step of a ring from node to node.
    """

    inside: Link
    gather_bytes_per_s: float
    across_s: float
    node_bytes_per_s: float
    devices_per_node: int = 8

    def group(self, n: int, stride: int = 1) -> GroupLink:
        """`n` ranks that stand `stride` apart, nodes filled one after the other."""
        return group_link(self, n, stride)


@lru_cache(maxsize=8192)
def group_link(wires: Wires, n: int, stride: int) -> GroupLink:
    n, stride, G = at_least(n, 1, "n"), at_least(stride, 1, "stride"), wires.devices_per_node
    inside = 1 / wires.inside.beta_s_per_byte
    if stride * n <= G:
        nodes, share = 1, inside
    else:
        g = max(1, G // stride)
        nodes, share = -(-n // g), wires.node_bytes_per_s * g / G
    return GroupLink(n, nodes, wires.inside.alpha_s, wires.across_s, min(inside, share),
                     min(wires.gather_bytes_per_s, share, inside))
