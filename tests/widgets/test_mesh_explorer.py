"""MeshExplorer shows the groups of the library's layouts and the bytes of their formulas."""

from itertools import product

import pytest

from course_lib.facts import model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pictures.figures import to_png
from course_lib.widgets import MeshExplorer
from course_lib.widgets.base import BadParameter
from course_lib.widgets.mesh_explorer import (
    LAYOUTS,
    MICRO_BATCHES,
    ORDERS,
    PER_NODE,
    axes_averaged_over,
    axes_of,
    layout_of,
    scene_of,
    traffic,
)
from tests.widgets.pictures import size_and_colours

D, LAYERS = model("Llama 3 8B").shape.hidden_size, model("Llama 3 8B").shape.num_layers


def along(mesh: str, axis: str, order: str = ORDERS[0]):
    return next(each for each in traffic(layout_of(mesh, order)) if each.axis == axis)


def test_every_layout_has_64_ranks_and_a_layouts_name_says_it_all():
    for mesh, order in product(LAYOUTS, ORDERS):
        layout = layout_of(mesh, order)
        assert layout.world_size == 64 and layout.order == order
        assert ParallelLayout.from_string(str(layout), order) == layout


def test_bytes_are_those_of_the_closed_forms():
    tp, pp, dp = (along("dp4,pp4,tp4", axis).sent for axis in ("tp", "pp", "dp"))
    assert tp == 8 * LAYERS / 4 * 4 * 2 * 3 / 4 * 2 * 8192 * D  # m layers, four all-reduces of B T D 16-bit numbers
    assert pp == 2 * MICRO_BATCHES * 2 * 8192 * D
    assert dp == pytest.approx(2 * 3 / 4 * 2 * 8.03e9 / 16, rel=0.001)
    mixtral = model("Mixtral 8x7B").shape
    assert along("dp8,pp8,ep8", "ep").sent == 8 * 4 * 4 * mixtral.active_experts * 8192 * D * 2 * 7 / 8


def test_a_group_on_one_node_talks_inside_it_and_one_on_several_over_the_network():
    for mesh, order in product(LAYOUTS, ORDERS):
        layout = layout_of(mesh, order)
        for each in traffic(layout):
            nodes = [{rank // PER_NODE for rank in group} for group in layout.groups(*axes_averaged_over(each.axis))]
            assert each.between_nodes == any(len(of_group) > 1 for of_group in nodes), (mesh, order, each.axis)
            assert (each.bytes_per_s == 450e9) == (not each.between_nodes)
            assert each.seconds > each.sent / each.bytes_per_s  # and the latency of its messages


@pytest.mark.parametrize("mesh, axis, order, gb_per_s", [
    ("dp4,pp4,tp4", "tp", "tp,cp,dp,pp", 450),  # inside a node
    ("dp4,pp4,tp4", "dp", "tp,cp,dp,pp", 100),  # two in each of two nodes: two cards
    ("dp4,pp4,tp4", "pp", "tp,cp,dp,pp", 50),  # a message: one card
    ("dp8,tp8", "dp", "tp,cp,dp,pp", 50),  # eight strided groups at once: one card each
    ("dp2,pp2,cp2,tp8", "dp", "tp,cp,pp,dp", 50),  # dp and cp together, with pp between them
    ("dp8,pp8,ep8", "ep", "pp,cp,dp,tp", 50),  # each on its own card
])
def test_each_axis_has_the_cards_that_its_groups_use(mesh, axis, order, gb_per_s):
    assert along(mesh, axis, order).bytes_per_s == pytest.approx(gb_per_s * 1e9)


def test_tp_innermost_is_the_fastest_order_of_every_layout_that_has_tp():
    for mesh in LAYOUTS:
        times = {order: sum(each.seconds for each in traffic(layout_of(mesh, order))) for order in ORDERS}
        if "tp" in mesh:
            assert min(times[order] for order in ORDERS if order.startswith("tp")) == min(times.values())
            assert times["dp,cp,pp,tp"] > 3 * min(times.values())


def test_the_headline_is_the_finding():
    assert repr(MeshExplorer(order="dp,cp,pp,tp", axis="tp")) == (
        "MeshExplorer, dp4,pp4,tp4, order dp,cp,pp,tp, rank 21 along tp: A step of Llama 3 8B sends for 562 ms, most "
        "of it along tp: 5.7 times what it takes with tp innermost; rank 21 is dp 1, pp 1, cp 0, tp 1, ep 0; its group "
        "along tp is ranks 5, 21, 37, 53")


def test_every_choice_can_be_shown():
    for mesh, order in product(LAYOUTS, ORDERS):
        for axis, rank in product(axes_of(mesh), (0, 21, 63)):
            assert scene_of(layout_of(mesh, order), axis, rank).key == f"{mesh} {order} {axis} {rank}"


def test_the_picture_has_every_colour():
    (width, height), colours = size_and_colours(to_png(MeshExplorer().picture()))
    assert width > 900 and height > 400 and colours > 5


def test_an_axis_that_the_layout_does_not_have_is_refused_and_another_layout_brings_its_own():
    with pytest.raises(BadParameter, match="expected one of 'tp', 'dp', 'pp'"):
        MeshExplorer(axis="cp")
    with pytest.raises(BadParameter, match="expected a whole number from 0 to 63"):
        MeshExplorer(rank=64)
    widget = MeshExplorer(axis="pp")
    layouts = next(control for control in widget.list_controls(widget.settings()) if control.label == "layout")
    assert layouts.choices[2].change == {"mesh": "dp8,tp8", "axis": "tp"}
