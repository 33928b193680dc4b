"""WhichWire draws the wires that a group uses, and says what costs.network says of them."""

from itertools import product

import pytest

from course_lib.costs.network import network_of
from course_lib.pictures.figures import to_png
from course_lib.widgets import WhichWire
from course_lib.widgets.base import BadParameter
from course_lib.widgets.which_wire import CALLS, DEVICES, GROUPS, NODES, PER_NODE, Wires, members, wires_in_use
from tests.widgets.pictures import size_and_colours


@pytest.mark.parametrize("group", GROUPS)
def test_groups_share_out_all_gpus_and_are_those_of_the_model(group):
    groups = members(group)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(NODES * PER_NODE))
    network = network_of("H100")
    assert {network.group_at(ranks) for ranks in groups} == {network.group(*GROUPS[group])}


@pytest.mark.parametrize("device, call, group", [*product(DEVICES, CALLS, GROUPS)])
def test_the_cards_in_use_carry_what_the_headline_says(device, call, group):
    """What leaves a node in a second is what its cards in use carry, or less where NVLink is the slower one."""
    network, ranks = network_of(device), members(group)[0]
    found, wires = network.group_at(ranks), wires_in_use(call, members(group)[0])
    here = [rank for rank in ranks if rank < PER_NODE]
    cards = sum(wires[rank].card for rank in here)
    rate = found.bytes_per_s(call)
    assert (cards == 0) == (found.nodes == 1)
    if cards == 0:
        assert rate == pytest.approx(network.inside.bytes_per_s)
    elif call == "all_gather":  # around a ring all that each rank sends goes over the edge, by all rings together
        assert rate == pytest.approx(min(network.inside.bytes_per_s, cards * network.card.bytes_per_s))
    elif call == "all_to_all":
        leaves = (found.n - len(here)) / (found.n - 1)
        assert rate * leaves == pytest.approx(network.card.bytes_per_s)
    else:
        assert rate == pytest.approx(network.card.bytes_per_s) and cards <= 2  # one to send, one to receive


def test_of_a_ring_of_single_messages_the_edges_alone_leave_the_node():
    wires = wires_in_use("ring", members("every other GPU")[1])
    assert [rank for rank, each in wires.items() if each.card] == [1, 7, 9, 15]
    assert wires_in_use("ring", members("one of each node")[3]) == {3: Wires(False, True), 11: Wires(False, True)}


def test_the_headline_is_the_finding_with_what_was_measured():
    assert repr(WhichWire()) == (
        "WhichWire, collective in rings, two whole nodes, H100: 400 GB/s from each GPU: all eight cards of each node, "
        "in eight rings; by data sheets; with nobody else on them, such wires reach about 338 GB/s; measured over EFA "
        "v2 with 2.0 GB: 329 GB/s")
    strided = repr(WhichWire(group="one of each node"))
    assert "50 GB/s from each GPU: one card; the other 7 groups have theirs at the same time" in strided
    assert "93.8 GB/s from each GPU: its own card, for 8 of 15 messages" in repr(WhichWire(call="all_to_all"))


def test_each_wire_is_in_use_or_not_in_the_picture():
    marks = {mark.key: mark for mark in WhichWire.scene({"call": "ring", "group": "two whole nodes"}).marks}
    for rank in range(NODES * PER_NODE):
        assert marks[f"{rank} to the switch"].kind == "rect"
        assert (marks[f"{rank} to the network"].kind == "rect") == (rank in (0, 7, 8, 15))
    (width, height), colours = size_and_colours(to_png(WhichWire().picture()))
    assert width > 900 and height > 400 and colours > 4


@pytest.mark.parametrize("wrong, words", [
    ({"call": "broadcast"}, "call='broadcast': expected one of 'all_gather'"), ({"group": []}, "group=.* expected one"),
    ({"device": "V100"}, "device='V100': expected one of 'A100'"), ({"ranks": 8}, "no parameter ranks")])
def test_what_there_is_not_is_refused_by_name(wrong, words):
    with pytest.raises(BadParameter, match=words):
        WhichWire(**wrong)
