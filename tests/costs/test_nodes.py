"""Groups that pass through nodes: what a ring waits for, and what it has of the wires."""

from dataclasses import replace

import pytest

from course_lib.costs.links import Link
from course_lib.costs.nodes import TREE_ACROSS_S, TREE_INSIDE_S
from course_lib.facts import MEASURED_ALL_GATHER
from course_lib.planner import SOFTWARE, cluster, software_named
from course_lib.planner.rates import rates_of

WIRES = rates_of(cluster("H100", 512), SOFTWARE[0]).wires
CLOUD = rates_of(cluster("H100", 256), software_named("nanotron 2025")).wires


@pytest.mark.parametrize("n, stride, nodes", [(8, 1, 1), (16, 1, 2), (16, 8, 16), (64, 2, 16), (3, 4, 2)])
def test_a_ring_crosses_the_network_once_for_each_further_node(n, stride, nodes):
    group = WIRES.group(n, stride)
    assert group.nodes == nodes
    assert group.around_s == pytest.approx((nodes - 1) * WIRES.across_s + (n - nodes) * WIRES.inside.alpha_s)
    assert group.gather(0, messages=3) == pytest.approx(3 * group.around_s)


def test_the_same_ranks_wait_longer_when_they_stand_on_more_nodes():
    waits = [WIRES.group(16, stride).around_s for stride in (1, 2, 4, 8)]
    assert waits == sorted(waits) and waits[-1] > 3 * waits[0]


def test_all_gathers_of_a_cloud_take_what_was_measured():
    """Small ones by the crossings (to 25 %), the largest by the wires (to 15 %)."""
    for curve in MEASURED_ALL_GATHER:
        group = CLOUD.group(curve.num_devices)
        sizes = sorted(curve.seconds)
        for num_bytes, off in ((sizes[0], 0.25), (sizes[-1], 0.15)):
            assert group.gather(num_bytes) == pytest.approx(curve.seconds[num_bytes].value, rel=off), (curve, num_bytes)


def test_an_all_reduce_over_many_nodes_goes_down_a_tree():
    few, many = WIRES.group(16), WIRES.group(512)
    assert few.all_reduce(0) == pytest.approx(2 * few.around_s)
    slow = replace(WIRES, inside=Link(1.0, 1e-12)).group(4)  # in a node there is none, however slow its wires are
    assert slow.all_reduce(0) == pytest.approx(2 * 3 * 1.0)
    assert many.all_reduce(0) == pytest.approx(2 * (7 * TREE_INSIDE_S + 6 * TREE_ACROSS_S))
    assert many.all_reduce(0) < 2 * many.around_s


def test_a_group_of_one_sends_nothing():
    alone = WIRES.group(1)
    assert alone.gather(1e9) == alone.all_reduce(1e9) == alone.send(1e9) == 0
