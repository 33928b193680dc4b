"""What a collective takes: T = alpha + beta M for one message (Hockney 1994), added up along the longest path.

    n  ranks      M  bytes of the whole message: what all_reduce, broadcast and reduce handle, the full output of
                     all_gather and gather, the full input of reduce_scatter, scatter and all_to_all

The additions themselves are not counted. A hierarchical all-reduce is a sum of three: reduce_scatter of M on the inner
link, all_reduce of M/g on the outer one, all_gather of M on the inner one. Source: Thakur, Rabenseifner and Gropp 2005.

How much of its data sheet a wire reaches in a collective are four numbers, each read off one measured point (Reached).
All else that costs.network says of a cluster is a data sheet's or NCCL's own, so all other measured points can
contradict it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import lru_cache
from math import log2
from operator import mul

from course_lib.facts import (
    RING_ON_NVLINK4,
    SHARED_CLUSTER,
    STEP_LATENCY,
    Interconnect,
    MeasuredCollective,
    interconnect,
    measured_collectives,
)
from course_lib.facts.fact import above_zero


@dataclass(frozen=True)
class Link:
    """One message of M bytes takes alpha_s + beta_s_per_byte * M seconds. ValueError for negative values.

    >>> link = Link(alpha_s=1e-6, beta_s_per_byte=1e-9)
    >>> [f"{link.seconds(M):.6f}" for M in (0, 1_000, 1_000_000)]
    ['0.000001', '0.000002', '0.001001']
    """

    alpha_s: float
    beta_s_per_byte: float

    @classmethod
    def of_rate(cls, bytes_per_s: float, alpha_s: float = 0.0) -> "Link":
        """The link that carries `bytes_per_s`. No other line of the course divides by what a wire carries."""
        return cls(alpha_s, 1 / above_zero(bytes_per_s, "bytes_per_s"))

    def seconds(self, num_bytes: float) -> float:
        """Seconds of one message of num_bytes."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes

    @property
    def bytes_per_s(self) -> float:
        """Bytes a second that long messages get: 1/beta."""
        return 1 / self.beta_s_per_byte

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name}={value!r}: expected a finite number of 0 or more")


def largest_power_of_two(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def powers_of_two_below(n: int) -> list[int]:
    """1, 2, 4, ... below n: ceil(log2 n) of them."""
    return [1 << step for step in range((n - 1).bit_length())]


def halving_doubling_path(n: int, M: float) -> tuple[float, float]:
    """(messages, bytes) of an all-reduce of M by halving and doubling; ranks above a power of two add a way in and out.
    """
    p = largest_power_of_two(n)
    in_and_out = 2 if n > p else 0  # what the ranks above p hand in, and get back
    return 2 * math.log2(p) + in_and_out, 2 * (p - 1) / p * M + in_and_out * M


def recursive_doubling_path(n: int, M: float) -> tuple[float, float]:
    """(messages, bytes) of an all-reduce of M by recursive doubling: log2 p messages, each of all M bytes."""
    p = largest_power_of_two(n)
    messages = math.log2(p) + (2 if n > p else 0)  # all of them as long as the whole
    return messages, messages * M


def tree_path(n: int, M: float) -> tuple[float, float]:
    """(messages, bytes) down a tree of n ranks: ceil(log2 n) messages of M bytes."""
    steps = (n - 1).bit_length()  # ceil(log2 n)
    return steps, steps * M


def ring_path(n: int, M: float) -> tuple[float, float]:
    """(messages, bytes) once around a ring of n ranks: n-1 messages of M/n bytes."""
    return n - 1, (n - 1) / n * M


def go_twice(once: Callable[[int, float], tuple[float, float]]) -> Callable[[int, float], tuple[float, float]]:
    """The path that goes `once` and then as far again, as an all-reduce does in two halves."""
    return lambda n, M: (2 * once(n, M)[0], 2 * once(n, M)[1])


# (op, algorithm) -> messages and bytes, one after the other
COSTS: dict[tuple[str, str], Callable[[int, float], tuple[float, float]]] = {
    ("all_reduce", "ring"): go_twice(ring_path),
    ("all_reduce", "naive"): lambda n, M: (2 * (n - 1), 2 * (n - 1) * M),
    ("all_reduce", "tree"): go_twice(tree_path),
    ("all_reduce", "halving_doubling"): halving_doubling_path,
    ("all_reduce", "recursive_doubling"): recursive_doubling_path,
    ("reduce_scatter", "ring"): ring_path,
    ("all_gather", "ring"): ring_path,
    ("broadcast", "tree"): tree_path,
    ("reduce", "tree"): tree_path,
    ("gather", "naive"): ring_path,
    ("scatter", "naive"): ring_path,
    ("all_to_all", "pairwise"): ring_path,
}


# op -> M that the busiest of n ranks sends or receives at least
BOUNDS: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1), n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "broadcast": lambda n: Fraction(n > 1),
    "reduce": lambda n: Fraction(n > 1),
    "gather": lambda n: Fraction(n - 1, n),
    "scatter": lambda n: Fraction(n - 1, n),
    "all_to_all": lambda n: Fraction(n - 1, n),
}
BOUND_FORMULAS = {op: "M" if op in ("broadcast", "reduce") else "(n-1)/n M" for op in BOUNDS}
BOUND_FORMULAS["all_reduce"] = "2(n-1)/n M"


def sent_share(op: str, n: int) -> float:
    """The share of M that each of n ranks sends in a bandwidth-optimal algorithm, as bus bandwidth counts it. A message
    counts whole.
    """
    return 1.0 if op in ("ring", "send") else float(BOUNDS[op](n))


def step_s(wire: Interconnect) -> float:
    """Seconds of one step of a ring over `wire`, however short its message: NCCL's own number, over Ethernet TCP's.

    ValueError where nobody published one.
    """
    if wire.technology not in STEP_LATENCY:
        raise ValueError(f"no latency of a step over {wire.name}: expected one of {', '.join(STEP_LATENCY)}")
    return STEP_LATENCY[wire.technology].value * 1e-6


def hardware_link(name: str) -> Link:
    """The wire that facts.interconnect calls `name`: alpha of a step of a ring, beta of the data sheet."""
    wire = interconnect(name)
    return Link.of_rate(wire.one_way_bytes_per_s, step_s(wire))


def collective_time(op: str, algorithm: str, num_bytes: float, world_size: int, link: Link) -> float:
    """Seconds that `op` on `num_bytes` (M) takes with `algorithm` on `world_size` ranks (n), all links alike.

    ValueError for a pair of op and algorithm that is not here, negative bytes, or fewer than one rank.

    >>> nvlink = Link.of_rate(450e9)
    >>> f"{1e3 * collective_time('all_reduce', 'ring', 1e9, 8, nvlink):.2f} ms"
    '3.89 ms'
    >>> f"{1e3 * collective_time('all_reduce', 'naive', 1e9, 8, nvlink):.2f} ms"
    '31.11 ms'
    """
    if (op, algorithm) not in COSTS:
        there_are = ", ".join(f"{op} {algorithm}" for op, algorithm in COSTS)
        raise ValueError(f"no cost for op={op!r} with algorithm={algorithm!r}: expected one of {there_are}")
    if not (math.isfinite(num_bytes) and num_bytes >= 0):
        raise ValueError(f"num_bytes={num_bytes!r}: expected a finite number of 0 or more")
    if world_size != int(world_size) or world_size < 1:
        raise ValueError(f"world_size={world_size!r}: expected a whole number of 1 or more")
    num_messages, path_bytes = COSTS[op, algorithm](int(world_size), num_bytes)
    return link.alpha_s * num_messages + link.beta_s_per_byte * path_bytes


def fit_link(sizes_bytes: Sequence[float], times_s: Sequence[float]) -> Link:
    """The link whose alpha + beta M comes closest to the times measured for messages of these sizes.

    Least squares of the relative errors: in seconds, the one error of the longest message would outweigh those
    of all short ones, and alpha is what the short ones know. Where that asks for a negative alpha or beta, it is
    0 and the other one is fitted alone. ValueError for lists of unequal length, fewer than two different sizes,
    negative sizes, or times that are not above 0.

    >>> link = fit_link(sizes_bytes=[1e3, 1e6], times_s=[2e-6, 1.001e-3])
    >>> f"{1e6 * link.alpha_s:.1f} us and {link.bytes_per_s / 1e9:.1f} GB/s"
    '1.0 us and 1.0 GB/s'
    """
    M, t = [float(size) for size in sizes_bytes], [float(taken) for taken in times_s]
    if len(M) != len(t):
        raise ValueError(f"{len(M)} sizes and {len(t)} times: expected two lists of the same length")
    if len(set(M)) < 2:
        raise ValueError(f"sizes_bytes={M}: expected at least two different sizes")
    if not all(math.isfinite(size) and size >= 0 for size in M):
        raise ValueError(f"sizes_bytes={M}: expected finite numbers of 0 or more")
    if not all(math.isfinite(taken) and taken > 0 for taken in t):
        raise ValueError(f"times_s={t}: expected finite numbers above 0")
    # Each equation is divided by its time: so the errors that are squared are relative ones.
    a, b = [1 / taken for taken in t], [size / taken for size, taken in zip(M, t)]  # alpha a + beta b is to be 1
    onto_a = dot(a, b) / dot(a, a)
    rest = [y - onto_a * x for x, y in zip(a, b)]  # of b, what a has no part in
    beta = math.fsum(rest) / dot(rest, rest)
    alpha = math.fsum(a) / dot(a, a) - beta * onto_a
    if alpha < 0:
        alpha, beta = 0.0, math.fsum(b) / dot(b, b)
    elif beta < 0:
        alpha, beta = math.fsum(a) / dot(a, a), 0.0
    return Link(alpha, beta)


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    """The sum of products, exact but for one rounding of the sum."""
    return math.fsum(map(mul, x, y))


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


def rate_ratio(wire: Interconnect, other: Interconnect) -> float:
    """How many times the bytes a second of `other` that `wire` carries, by their data sheets."""
    return wire.one_way.value / other.one_way.value


def slow_down(link: Link, share: float) -> Link:
    """The link at a share of its rate, with the same latency."""
    return replace(link, beta_s_per_byte=link.beta_s_per_byte / share)
