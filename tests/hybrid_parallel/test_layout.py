"""ParallelLayout: who stands where, on paper; and its process groups and mesh on ranks."""

from itertools import permutations

import pytest
import torch
import torch.distributed as dist

from course_lib.hybrid_parallel import ParallelLayout
from course_lib.runtime import launch

ORDERS = [",".join(order) for order in permutations(("tp", "cp", "dp", "pp"))]
SIZES = {"dp": 2, "pp": 3, "cp": 2, "tp": 4}


def flat(groups):
    return sorted(rank for group in groups for rank in group)


def test_the_first_axis_of_the_order_is_the_fastest():
    layout = ParallelLayout(dp=2, pp=2, tp=2)
    assert [layout.coordinates(rank)["tp"] for rank in range(8)] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [layout.coordinates(rank)["dp"] for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [layout.coordinates(rank)["pp"] for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    across = ParallelLayout(dp=2, tp=2, order="dp,tp,cp,pp")
    assert across.groups("dp") == [[0, 1], [2, 3]] and across.groups("tp") == [[0, 2], [1, 3]]


@pytest.mark.parametrize("order", ORDERS)
def test_groups_of_any_axes_part_the_ranks_and_differ_along_these_axes_only(order):
    layout = ParallelLayout(**SIZES, ep=2, order=order)
    assert layout.world_size == 48
    for axes in (("dp",), ("tp",), ("pp", "tp"), ("cp", "dp"), ("dp", "pp", "cp", "tp")):
        groups = layout.groups(*axes)
        assert groups == layout.groups(*reversed(axes)) == sorted(sorted(group) for group in groups)
        assert flat(groups) == list(range(48))
        for group in groups:
            assert len(group) == layout.size(*axes)
            where = [layout.coordinates(rank) for rank in group]
            for axis in SIZES.keys() - set(axes):
                assert len({coordinates[axis] for coordinates in where}) == 1
            for rank in group:
                assert layout.group_of(rank, *axes) == group


@pytest.mark.parametrize("order", ORDERS)
def test_a_rank_and_its_coordinates_are_each_others_inverse(order):
    layout = ParallelLayout(**SIZES, order=order)
    for rank in range(layout.world_size):
        where = layout.coordinates(rank)
        assert layout.rank(**{axis: where[axis] for axis in SIZES}) == rank
        assert where["ep"] == 0
    assert layout.rank() == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ep, etp", [(1, 1), (2, 1), (3, 2), (12, 1), (1, 4), (4, 3)])
def test_etp_and_then_ep_are_the_innermost_parts_of_the_plane_of_dp_cp_and_tp(order, ep, etp):
    layout = ParallelLayout(dp=3, cp=2, tp=2, pp=2, ep=ep, etp=etp, order=order)
    planes = layout.groups("dp", "cp", "tp")
    assert layout.groups("ep", "etp", "edp") == planes
    outer_to_inner = [axis for axis in reversed(order.split(",")) if axis != "pp"]
    for plane in planes:
        ordered = sorted(plane, key=lambda rank: [layout.coordinates(rank)[axis] for axis in outer_to_inner])
        for number, rank in enumerate(ordered):
            set_of_experts = number // (ep * etp) * ep * etp  # where the ranks begin that hold each expert once
            place = number - set_of_experts
            assert layout.coordinates(rank)["ep"] == place // etp
            assert layout.group_of(rank, "etp") == sorted(ordered[set_of_experts + place // etp * etp:][:etp])
            assert layout.group_of(rank, "ep") == sorted(ordered[set_of_experts:][place % etp:ep * etp:etp])
            assert layout.group_of(rank, "edp") == sorted(ordered[place::ep * etp])
    assert layout.edp == 12 // (ep * etp) == len(layout.groups("edp")[0])


def test_a_published_run_with_more_ranks_of_ep_than_of_dp_is_a_layout():
    """NVIDIA's of Qwen3-235B and DeepSeek-V3 on 256 H100, tp2 pp8 ep32: the ranks of tp share experts, too."""
    layout = ParallelLayout.from_string("dp16,tp2,pp8,ep32,etp1")
    assert (layout.world_size, layout.edp) == (256, 1)
    assert layout.groups("ep") == layout.groups("dp", "tp") == [list(range(i, i + 32)) for i in range(0, 256, 32)]
    assert str(layout) == "dp16,pp8,tp2,ep32"


def test_text_and_layout_are_each_others_inverse():
    for text in ("dp2,pp2,tp2", "dp1", "dp4,ep2,zero1", "cp8", "dp2,pp3,cp5,tp7,zero3", "dp2,tp4,ep2,etp4"):
        assert str(ParallelLayout.from_string(text)) == text
    assert ParallelLayout.from_string("tp2, dp4") == ParallelLayout(dp=4, tp=2)
    assert ParallelLayout.from_string("dp2,tp2", order="dp,tp,cp,pp").groups("dp") == [[0, 1], [2, 3]]


@pytest.mark.parametrize("given, said", [
    ({"dp": 0}, "dp=0: expected a whole number of at least 1"),
    ({"tp": 2.0}, "tp=2.0: expected a whole number"),
    ({"zero_stage": 4}, "zero_stage=4: expected 0, 1, 2 or 3"),
    ({"order": "tp,dp"}, "order='tp,dp': expected dp, pp, cp, tp in the order"),
    ({"order": "ep,tp,dp,pp"}, "ep and etp lie inside dp, cp and tp"),
    ({"dp": 2, "cp": 3, "ep": 4}, "ep=4 with dp=2, cp=3 and tp=1: expected a number that divides dp.cp.tp=6"),
    ({"dp": 2, "tp": 4, "ep": 4, "etp": 4}, "ep=4 times etp=4 with dp=2, cp=1 and tp=4: expected a number that div"),
    ({"etp": 0}, "etp=0: expected a whole number of at least 1"),
])
def test_what_is_no_layout_is_refused_with_what_was_expected(given, said):
    with pytest.raises(ValueError, match=said):
        ParallelLayout(**given)


@pytest.mark.parametrize("call, said", [
    (lambda layout: layout.groups("sp"), "axes \\['sp'\\]: expected one or more of dp, pp"),
    (lambda layout: layout.groups(), "axes \\[\\]: expected one or more"),
    (lambda layout: layout.groups("dp", "ep"), "ep, etp and edp are the ranks of dp, cp and tp cut in"),
    (lambda layout: layout.groups("tp", "etp"), "expected the ones or the others"),
    (lambda layout: layout.coordinates(4), "rank=4 in a layout of 4 ranks: expected 0 to 3"),
    (lambda layout: layout.rank(dp=2), "dp=2 in a layout with dp=2: expected 0 to 1"),
    (lambda layout: layout.rank(ep=0), "expected coordinates along dp, pp, cp, tp"),
    (lambda layout: layout.from_string("dp2,xp3"), "'xp3' in the layout 'dp2,xp3': expected dp, pp"),
    (lambda layout: layout.from_string("dp2,dp2"), "dp twice in the layout"),
])
def test_what_a_layout_has_not_is_refused_with_what_was_expected(call, said):
    with pytest.raises(ValueError, match=said):
        call(ParallelLayout(dp=2, tp=2))


def on_ranks(layout):
    rank = dist.get_rank()
    found = {}
    for axes in (("tp",), ("dp",), ("pp",), ("dp", "cp"), ("ep",), ("etp",), ("edp",), ("dp", "tp")):
        me = layout.member(*axes)
        ranks = dist.get_process_group_ranks(me.group)
        total = torch.tensor([rank])
        dist.all_reduce(total, group=me.group)
        assert layout.member(*axes).group is me.group, "a group is made once"
        assert (ranks, me.n, int(total)) == (layout.group_of(rank, *axes), len(ranks), sum(ranks))
        found[axes] = ranks.index(rank) == me.r
    mesh = layout.mesh()
    for axis in layout.axes:
        assert mesh.get_local_rank(axis) == layout.coordinates(rank)[axis]
        assert mesh.get_group(axis) is layout.member(axis).group
    return all(found.values()), mesh.mesh.tolist(), mesh.mesh_dim_names


@pytest.mark.parametrize("text, order", [("dp2,pp2", "tp,cp,dp,pp"), ("dp2,tp2,ep2,etp2", "dp,tp,cp,pp"), ("cp3,ep3",
                                                                                        "tp,cp,dp,pp")])
def test_process_groups_and_torchs_mesh_are_those_on_paper(text, order):
    layout = ParallelLayout.from_string(text, order=order)
    for places_fit, ranks, names in launch(on_ranks, layout, world_size=layout.world_size):
        assert places_fit and names == tuple(reversed(layout.axes))
        assert torch.tensor(ranks).flatten().tolist() == list(range(layout.world_size))


def test_a_world_of_another_size_is_refused():
    def body():
        with pytest.raises(ValueError, match="is one of 4 ranks, and the world has 2"):
            ParallelLayout(dp=4).member("dp")

    launch(body, world_size=2)
