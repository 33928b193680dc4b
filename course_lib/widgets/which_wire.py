"""WhichWire: two nodes of eight GPUs. Which wires does a group of ranks use, and what do they give it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.costs.network import Group, Network, network_of
from course_lib.facts import ACCELERATORS, accelerator, interconnect, measured_collectives
from course_lib.pictures.scene import Scene, Sheet, bars
from course_lib.pictures.units import human_bytes
from course_lib.widgets.base import Control, Explorable, OneOf, chooser

NODES, PER_NODE = 2, 8
DEVICES = [device.name for device in ACCELERATORS if device.in_switched_eights]
CALLS = {"all_gather": "collective in rings", "all_to_all": "all-to-all", "ring": "point-to-point ring"}
GROUPS = {  # ranks, and how far apart they stand
    "half a node": (4, 1), "one node": (8, 1), "two whole nodes": (16, 1), "every other GPU": (8, 2),
    "one of each node": (2, 8)}
PALE = 0.6


@dataclass(frozen=True)
class Wires:
    """Of one GPU: whether it sends over its wire to the node's switch, and over its network card."""

    inside: bool
    card: bool


def group_of(network: Network, group: str) -> Group:
    return network.group(*GROUPS[group])


def members(group: str) -> list[list[int]]:
    """All groups of this shape on the sixteen GPUs, that of GPU 0 first."""
    n, stride = GROUPS[group]
    firsts = [block + start for block in range(0, NODES * PER_NODE, n * stride) for start in range(stride)]
    return [[first + stride * place for place in range(n)] for first in firsts]


def wires_in_use(call: str, ranks: list[int]) -> dict[int, Wires]:
    """Around a ring of single messages the ranks at the edges of a node send and receive for it."""
    nodes = [[rank for rank in ranks if rank // PER_NODE == node] for node in range(NODES)]
    across = sum(bool(here) for here in nodes) > 1
    edges = {rank for here in nodes if here for rank in (here[0], here[-1])}
    return {rank: Wires(len(here) > 1, across and (call != "ring" or rank in edges)) for here in nodes for rank in here}


LEFT, COLUMN, GPU, HIGH = 78, 50, 40, 30
CARD = 16  # also of the switches
# From top to bottom of node 0: switch, GPU, card, network; node 1 stands on its head.
SWITCH_Y, GPU_Y, CARD_Y, NETWORK_Y = (22, 358), (84, 282), (136, 244), 190
BARS, END = 704, 806


def scene_of(device: str, call: str, group: str) -> Scene:
    """The wires of two nodes with those in use in colour; beside them what they give, by call and by group."""
    network, sheet = network_of(device), Sheet()
    add_nodes(sheet, device, call, group)
    rates = {name: group_of(network, name).bytes_per_s(call) for name in GROUPS}
    of_calls = {name: group_of(network, group).bytes_per_s(name) for name in CALLS}
    sheet.text("by call", "label", BARS - 132, 30, "W of this group, by call")
    bars(sheet, BARS, END, 44, 24, [(CALLS[name], rate, gigabytes(rate), name == call)
                                    for name, rate in of_calls.items()])
    sheet.text("by group", "label", BARS - 132, 164, "W of this call, by group")
    bars(sheet, BARS, END, 178, 24, [(name, rate, gigabytes(rate), name == group) for name, rate in rates.items()])
    headline, detail = texts(device, call, group)
    asked = f"{CALLS[call]}, {group}, {device}"
    by_group = ". ".join(f"{name}: {gigabytes(rate)}" for name, rate in rates.items())
    return sheet.scene("WhichWire", f"{device} {call} {group}", asked, headline, detail, 394, by_group)


def add_nodes(sheet: Sheet, device: str, call: str, group: str) -> None:
    """From top to bottom: switch, GPUs and cards of node 0, the network, then node 1 the other way up."""
    wide = (PER_NODE - 1) * COLUMN + GPU
    inside, between = (interconnect(name) for name in accelerator(device).links)
    sheet.rect("network", "room", LEFT, NETWORK_Y, wide, CARD)
    sheet.inside("network is", "small", LEFT, NETWORK_Y, wide, CARD, "the network's switches")
    for node in range(NODES):
        sheet.text(f"node {node}", "label", LEFT - 10, GPU_Y[node] + HIGH / 2, f"node {node}", "end")
        sheet.rect(f"switch {node}", "room", LEFT, SWITCH_Y[node], wide, CARD)
        sheet.inside(f"switch {node} is", "small", LEFT, SWITCH_Y[node], wide, CARD, "the node's switch")
    for number, ranks in enumerate(members(group)):
        for rank, wires in wires_in_use(call, ranks).items():
            add_gpu(sheet, rank, number, wires)
    for y, name, wire in ((60, inside.technology, inside), (CARD_Y[0], "a card", between)):
        sheet.text(name, "quiet", LEFT + wide + 8, y, name)
        sheet.text(f"{name} carries", "quiet", LEFT + wide + 8, y + 15, f"{wire.one_way.value:g} GB/s")


def add_gpu(sheet: Sheet, rank: int, number: int, wires: Wires) -> None:
    """With its card and its wires; the group of GPU 0 in full colour, the others pale, what is idle grey."""
    node, place = divmod(rank, PER_NODE)
    x, role, tint = LEFT + place * COLUMN, f"rank {number % 8}", PALE if number else 0.0
    ends = {"to the switch": (wires.inside, SWITCH_Y[node], CARD, GPU_Y[node], HIGH),
            "to the card": (wires.card, GPU_Y[node], HIGH, CARD_Y[node], CARD),
            "to the network": (wires.card, CARD_Y[node], CARD, NETWORK_Y, CARD)}
    for name, (on, one, one_high, other, other_high) in ends.items():
        (top, high), (bottom, _) = sorted([(one, one_high), (other, other_high)])
        if on:
            sheet.rect(f"{rank} {name}", role, x + GPU / 2 - 2.5, top + high, 5, bottom - top - high, tint=tint)
        else:
            sheet.line(f"{rank} {name}", "axis", x + GPU / 2, top + high, x + GPU / 2, bottom)
    sheet.rect(f"GPU {rank}", role, x, GPU_Y[node], GPU, HIGH, tint=tint, hint=f"GPU {rank}, in group {number}")
    sheet.inside(f"GPU {rank} is", "on light" if tint else "on dark", x, GPU_Y[node], GPU, HIGH, f"{rank}")
    sheet.rect(f"card {rank}", role if wires.card else "spare", x + 6, CARD_Y[node], GPU - 12, CARD,
               tint=tint if wires.card else 0.0)


def texts(device: str, call: str, group: str) -> tuple[str, str]:
    """Headline and detail."""
    found = group_of(network_of(device), group)
    others = len(members(group)) - 1
    kept = f"; the other {f'{others} groups have' if others > 1 else 'group has'} theirs at the same time"
    if found.nodes == 1:
        why = "its own NVLink, whatever it sends"
    elif call == "ring":
        why = "one card: the ranks at a node's edge hold the others up"
    elif call == "all_to_all":
        leave = found.n - found.per_node
        why = f"its own card, for {leave} of {found.n - 1} messages" if found.per_node > 1 else f"its own card{kept}"
    else:
        cards = {1: "one card", PER_NODE: "all eight cards of each node"}.get(found.per_node, f"{found.per_node} cards")
        why = cards + (kept if others else ", in eight rings")
    reached = group_of(network_of(device, as_reached=True), group).bytes_per_s(call)
    measured = measurement_words(device, call, group)
    return (f"{gigabytes(found.bytes_per_s(call))} from each GPU: {why}",
            f"by data sheets; with nobody else on them, such wires reach about {gigabytes(reached)}{measured}")


def measurement_words(device: str, call: str, group: str) -> str:
    """What was measured on just this group, with the longest message."""
    found = group_of(network_of(device), group)
    for curve in measured_collectives(call, device, found.nodes):
        if curve.num_devices == found.n:
            M = max(curve.bus_bandwidth)
            over = f" over {curve.network}" if found.nodes > 1 else ""
            return f"; measured{over} with {human_bytes(M)}: {curve.bus_bandwidth[M].value:.3g} GB/s"
    return ""


def gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"


class WhichWire(Explorable, draw=scene_of):
    """Two nodes of eight `device`, whose ranks stand in groups of a shape, `group`, that all make the same `call`."""

    call = OneOf("all_gather", CALLS)
    group = OneOf("two whole nodes", GROUPS)
    device = OneOf("H100", DEVICES)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("call", "call", CALLS, lambda call: CALLS[call]), chooser("group", "group", GROUPS),
                chooser("device", "device", DEVICES)]
