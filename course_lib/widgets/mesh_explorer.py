"""MeshExplorer: 64 ranks on eight nodes; who talks to whom along each axis of a layout, how much, over which link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from course_lib.costs.flops import count_parameters, expert_matrices
from course_lib.costs.network import Group, network_of
from course_lib.costs.sharding import sent_bytes
from course_lib.costs.splitting import ring_attention_bytes, split_layer_bytes
from course_lib.facts import Shape, model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pictures.scene import Scene, Sheet, bars
from course_lib.pictures.units import human_bytes, human_seconds
from course_lib.widgets.base import Control, Explorable, OneOf, Setting, WholeNumber, chooser, require_one_of, slider

NODES, PER_NODE = 8, 8
WORLD = NODES * PER_NODE
CLUSTER = network_of("H100", PER_NODE)
# What an axis calls, as far as wires are concerned; all-reduces as their two halves, for which no switch adds up.
OPERATIONS = {"tp": "all_gather", "cp": "ring", "ep": "all_to_all", "dp": "all_gather", "pp": "send"}
LAYOUTS = ("dp4,pp4,tp4", "dp2,pp4,tp8", "dp8,tp8", "dp2,pp2,cp2,tp8", "dp8,pp8,ep8")
ORDERS = ("tp,cp,dp,pp", "tp,cp,pp,dp", "dp,cp,pp,tp", "pp,cp,dp,tp")
ROLES = {"tp": "forward", "cp": "activations", "ep": "late", "dp": "weights", "pp": "backward"}
SAID = {"tp": "tensor", "cp": "context", "ep": "expert", "dp": "data", "pp": "pipeline"}
MICRO_BATCHES = 8  # of one row each


@dataclass(frozen=True)
class AxisTraffic:
    """What one rank sends along one axis in a step. `seconds`: as if nothing else went on meanwhile."""

    axis: str
    size: int
    with_cp: bool
    times: int
    sent: float
    between_nodes: bool
    bytes_per_s: float
    seconds: float


def model_name(layout: ParallelLayout) -> str:
    return "Mixtral 8x7B" if layout.ep > 1 else "Llama 3 8B"


def sent_along(axis: str, layout: ParallelLayout, shape: Shape) -> tuple[int, float]:
    """(messages, bytes) of one rank in a step, 16-bit numbers, rows of 8192 tokens."""
    m, T, D = MICRO_BATCHES, 8192 // layout.cp, shape.hidden_size
    layers = shape.num_layers // layout.pp
    if axis == "tp":
        return 4 * layers * m, layers * m * split_layer_bytes(D, T, layout.tp)
    if axis == "cp":
        around = sum(ring_attention_bytes(1, shape.num_kv_heads // layout.tp, 8192, shape.d, layout.cp))
        return 3 * (layout.cp - 1) * layers * m, layers * m * around
    if axis == "pp":
        return 2 * m, 2 * m * 2 * T * D
    if axis == "ep":
        once = shape.active_experts * T / layout.tp * D * 2 * (layout.ep - 1) / layout.ep
        return 4 * layers * m, layers * m * 4 * once
    of_experts = shape.num_layers * expert_matrices(shape) * shape.num_experts
    held = count_parameters(shape) - of_experts if layout.ep > 1 else count_parameters(shape)
    sent = sent_bytes(held / (layout.tp * layout.pp), layout.dp * layout.cp, 0)
    if layout.ep > 1:
        sent += sent_bytes(of_experts / layout.pp / (layout.ep * layout.etp), layout.edp, 0)
    return 1, sent


def axes_averaged_over(axis: str) -> tuple[str, ...]:
    """Gradients are averaged over dp and cp together: the ranks of both hold the same parameters."""
    return ("dp", "cp") if axis == "dp" else (axis,)


def group_along(layout: ParallelLayout, axis: str) -> Group:
    """The group that has most of the network to cross; of a pipeline the next stage alone may lie elsewhere."""
    groups = [CLUSTER.group_at(group) for group in layout.groups(*axes_averaged_over(axis))]
    return max(groups, key=lambda group: group.nodes)


@cache
def traffic(layout: ParallelLayout) -> tuple[AxisTraffic, ...]:
    """One entry for each axis that has more than one place, innermost first."""
    shape, found = model(model_name(layout)).shape, []
    for axis in [*layout.axes, "ep"]:
        size = layout.size(*axes_averaged_over(axis))
        if size == 1:
            continue
        times, sent = sent_along(axis, layout, shape)
        group, op = group_along(layout, axis), OPERATIONS[axis]
        calls = 2 * times if op == "all_gather" else times
        found.append(AxisTraffic(axis, size, layout.cp > 1, times, sent, group.nodes > 1, group.bytes_per_s(op),
                             group.sending_s(op, sent, calls)))
    return tuple(found)


def layout_of(layout: str, order: str) -> ParallelLayout:
    return ParallelLayout.from_string(layout, order)


LEFT, TOP, CELL, ROW = 72, 34, 40, 30
TABLE, BAR, END = 430, 736, 820


def scene_of(mesh: str, order: str, axis: str, rank: int) -> Scene:
    """Nodes as rows of GPUs with the groups of one rank; beside them what it sends along each axis; orders compared."""
    sheet, shown = Sheet(), layout_of(mesh, order)
    along = traffic(shown)
    add_nodes(sheet, shown, axis, rank)
    add_table(sheet, along, axis)
    bottom = TOP + NODES * ROW + 14
    sheet.text("compared", "label", LEFT, bottom, "Sending in a step, nothing hidden, by the order of the axes")
    times = {order: sum(each.seconds for each in traffic(layout_of(str(shown), order))) for order in ORDERS}
    bars(sheet, 250, 760, bottom + 12, 20, [
        (f"{order.split(',')[0]} innermost, {order.split(',')[-1]} outermost", took, human_seconds(took),
         order == shown.order) for order, took in times.items()])
    finding, detail = texts(shown, along, axis, rank, times)
    asked = f"{shown}, order {shown.order}, rank {rank} along {axis}"
    by_axis = ". ".join(f"{each.axis}: {each.times} messages, {human_bytes(each.sent)}, {where(each)}"
                        for each in along)
    return sheet.scene("MeshExplorer", f"{shown} {shown.order} {axis} {rank}", asked, finding, detail,
                       bottom + 12 + 20 * len(ORDERS) + 10, by_axis)


def add_nodes(sheet: Sheet, shown: ParallelLayout, axis: str, rank: int) -> None:
    """Ranks in the order of the nodes; the groups of `rank` in colour, those of the other axes paler."""
    axes = [each.axis for each in traffic(shown) if each.axis != axis]
    group_of = {other: each for each in axes for other in shown.group_of(rank, *axes_averaged_over(each))}
    group_of |= dict.fromkeys(shown.group_of(rank, *axes_averaged_over(axis)), axis)
    sheet.text("nodes are", "quiet", LEFT, TOP - 14, "64 GPUs, eight in a node, by rank")
    for other in range(WORLD):
        node, place = divmod(other, PER_NODE)
        if not place:
            sheet.text(f"node {node}", "label", LEFT - 9, TOP + node * ROW + 13, f"node {node}", "end")
        x, y, own = LEFT + place * CELL, TOP + node * ROW, group_of.get(other)
        tint = 0.0 if own == axis or own is None else 0.62
        at = ", ".join(f"{name} {value}" for name, value in shown.coordinates(other).items())
        sheet.rect(f"rank {other}", ROLES[own] if own else "spare", x, y, CELL - 3, ROW - 4, tint=tint,
                   hint=f"rank {other}: {at}")
        role = "quiet" if not own else "on dark" if ROLES[own] == "forward" and not tint else "on light"
        sheet.inside(f"rank {other} is", role, x, y, CELL - 3, ROW - 4, f"{other}")
    node, place = divmod(rank, PER_NODE)
    sheet.outline("chosen", "limit", LEFT + place * CELL - 1.5, TOP + node * ROW - 1.5, CELL, ROW - 1)


def add_table(sheet: Sheet, along: tuple[AxisTraffic, ...], axis: str) -> None:
    """A row for each axis: how often a rank sends, how much, over which link, and how long that takes."""
    heads = {"axis": TABLE, "messages": TABLE + 138, "bytes a step": TABLE + 212, "time": BAR}
    for words, x in heads.items():
        sheet.text(f"column {words}", "quiet", x, TOP - 14, words)
    longest = max(each.seconds for each in along)
    for number, each in enumerate(along):
        y = TOP + 12 + number * 46
        role = "strong" if each.axis == axis else "small"
        sheet.rect(f"{each.axis} colour", ROLES[each.axis], TABLE, y - 7, 14, 14,
                   tint=0.0 if each.axis == axis else 0.62)
        sheet.text(f"{each.axis} is", role, TABLE + 20, y, axis_words(each))
        sheet.text(f"{each.axis} times", role, TABLE + 138, y, f"{each.times}")
        sheet.text(f"{each.axis} sends", role, TABLE + 212, y, human_bytes(each.sent))
        sheet.text(f"{each.axis} link", "alarm" if each.between_nodes else "quiet", TABLE + 20, y + 17, where(each))
        wide = (END - BAR) * each.seconds / longest
        sheet.rect(f"{each.axis} takes", "late" if each.between_nodes else "present", BAR, y - 9, wide, 18)
        sheet.text(f"{each.axis} took", "small", BAR + wide + 6, y, human_seconds(each.seconds))


def axis_words(each: AxisTraffic) -> str:
    return f"{'dp x cp' if each.axis == 'dp' and each.with_cp else each.axis} {each.size}, {SAID[each.axis]}"


def where(each: AxisTraffic) -> str:
    return f"{'between nodes' if each.between_nodes else 'inside a node'}, {each.bytes_per_s / 1e9:.3g} GB/s"


def texts(shown: ParallelLayout, along: tuple[AxisTraffic, ...], axis: str, rank: int,
          times: dict[str, float]) -> tuple[str, str]:
    """Headline and detail."""
    own, best = times[shown.order], min(times, key=times.get)
    most = max(along, key=lambda each: each.seconds)
    against = ("no other order takes less time" if own <= times[best] * 1.0001
               else f"{own / times[best]:.1f} times what it takes with {best.split(',')[0]} innermost")
    finding = f"A step of {model_name(shown)} sends for {human_seconds(own)}, most of it along {most.axis}: {against}"
    place = ", ".join(f"{name} {value}" for name, value in shown.coordinates(rank).items())
    group = shown.group_of(rank, *axes_averaged_over(axis))
    listed = ", ".join(map(str, group)) if len(group) <= 8 else f"{group[0]}, {group[1]}, ... {group[-1]}"
    return finding, f"rank {rank} is {place}; its group along {axis} is ranks {listed}"


class MeshExplorer(Explorable, draw=scene_of):
    """A `mesh` of 64 ranks on eight nodes, its axes laid out in `order`, innermost first; groups of `rank`."""

    mesh = OneOf("dp4,pp4,tp4", LAYOUTS)
    order = OneOf("tp,cp,dp,pp", ORDERS)
    axis = Setting("dp")
    rank = WholeNumber(21, 0, WORLD - 1)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        require_one_of("axis", settings["axis"], axes_of(settings["mesh"]))
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("layout", "mesh", LAYOUTS,
                        change=lambda mesh: {"mesh": mesh, "axis": axis_to_show(settings["axis"], axes_of(mesh))}),
                chooser("order", "order", ORDERS), chooser("axis", "axis", axes_of(settings["mesh"])),
                slider("rank", "rank", range(WORLD), settings["rank"])]


def axes_of(mesh: str) -> tuple[str, ...]:
    return tuple(each.axis for each in traffic(layout_of(mesh, ORDERS[0])))


def axis_to_show(axis: str, axes: tuple[str, ...]) -> str:
    """The axis that is shown where the new layout has it, its first one otherwise."""
    return axis if axis in axes else axes[0]
