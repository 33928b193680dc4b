"""ParallelLayout: who stands where, on paper; and its process groups and mesh on ranks."""

from itertools import combinations, product

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.hybrid_parallel import ParallelLayout
from course_lib.runtime import launch

AXES = ("tp", "cp", "dp", "pp")
ANY_AXES = [axes for count in range(1, 5) for axes in combinations(AXES, count)]


@st.composite
def layouts(draw):
    """Axes of any sizes in any order; experts and their widths over any part of the plane of dp, cp and tp."""
    sizes = {axis: draw(st.integers(1, 3)) for axis in AXES}
    plane = sizes["dp"] * sizes["cp"] * sizes["tp"]
    ep = draw(st.sampled_from([ep for ep in range(1, plane + 1) if plane % ep == 0]))
    etp = draw(st.sampled_from([etp for etp in range(1, plane // ep + 1) if plane // ep % etp == 0]))
    return ParallelLayout(**sizes, ep=ep, etp=etp, order=",".join(draw(st.permutations(AXES))))


def counted_up(layout):
    """The coordinates of every rank: as the digits of numbers that count up, of which the last axis is the highest."""
    outer_first = layout.order.split(",")[::-1]
    return [dict(zip(outer_first, digits)) for digits in product(*(range(getattr(layout, a)) for a in outer_first))]


@settings(max_examples=60)
@given(layouts())
def test_ranks_count_up_through_the_mesh_and_those_of_a_group_differ_along_its_axes_only(layout):
    places = counted_up(layout)
    assert layout.world_size == len(places) and layout.rank() == 0
    for rank, place in enumerate(places):
        assert place.items() <= layout.coordinates(rank).items() and layout.rank(**place) == rank
    for axes in ANY_AXES:
        alike: dict[tuple, list[int]] = {}
        for rank, place in enumerate(places):
            alike.setdefault(tuple(place[axis] for axis in AXES if axis not in axes), []).append(rank)
        assert layout.groups(*axes) == layout.groups(*reversed(axes)) == sorted(alike.values())
        assert {len(group) for group in alike.values()} == {layout.size(*axes)}
        assert all(layout.group_of(group[-1], *axes) == group for group in alike.values())


@settings(max_examples=60)
@given(layouts())
def test_etp_and_then_ep_are_the_innermost_parts_of_the_plane_of_dp_cp_and_tp(layout):
    planes, ep, etp = layout.groups("dp", "cp", "tp"), layout.ep, layout.etp
    assert layout.groups("ep", "etp", "edp") == planes
    outer_to_inner = [axis for axis in reversed(layout.order.split(",")) if axis != "pp"]
    for plane in planes:
        ordered = sorted(plane, key=lambda rank: [layout.coordinates(rank)[axis] for axis in outer_to_inner])
        for number, rank in enumerate(ordered):
            set_of_experts = number // (ep * etp) * ep * etp  # where the ranks begin that hold each expert once
            place = number - set_of_experts
            assert layout.coordinates(rank)["ep"] == place // etp
            assert layout.group_of(rank, "etp") == sorted(ordered[set_of_experts + place // etp * etp:][:etp])
            assert layout.group_of(rank, "ep") == sorted(ordered[set_of_experts:][place % etp:ep * etp:etp])
            assert layout.group_of(rank, "edp") == sorted(ordered[place::ep * etp])
    assert layout.edp == len(planes[0]) // (ep * etp) == len(layout.groups("edp")[0])


def test_text_and_layout_are_each_others_inverse():
    for text in ("dp2,pp2,tp2", "dp1", "dp4,ep2,zero1", "cp8", "dp2,pp3,cp5,tp7,zero3", "dp2,tp4,ep2,etp4",
                 "dp16,pp8,tp2,ep32"):
        assert str(ParallelLayout.from_string(text)) == text
    assert ParallelLayout.from_string("tp2, dp4") == ParallelLayout(dp=4, tp=2)
    assert ParallelLayout.from_string("dp2,tp2", order="dp,tp,cp,pp").groups("dp") == [[0, 1], [2, 3]]


FOUR = ParallelLayout(dp=2, tp=2)


@pytest.mark.parametrize("call, said", [
    (lambda: ParallelLayout(dp=0), "dp=0: expected a whole number of at least 1"),
    (lambda: ParallelLayout(tp=2.0), "tp=2.0: expected a whole number"),
    (lambda: ParallelLayout(etp=0), "etp=0: expected a whole number of at least 1"),
    (lambda: ParallelLayout(zero_stage=4), "zero_stage=4: expected 0, 1, 2 or 3"),
    (lambda: ParallelLayout(order="tp,dp"), "order='tp,dp': expected dp, pp, cp, tp in the order"),
    (lambda: ParallelLayout(order="ep,tp,dp,pp"), "ep and etp lie inside dp, cp and tp"),
    (lambda: ParallelLayout(dp=2, cp=3, ep=4), "ep=4 with dp=2, cp=3 and tp=1: expected a number that divides .*=6"),
    (lambda: ParallelLayout(dp=2, tp=4, ep=4, etp=4), "ep=4 times etp=4 with dp=2, cp=1 and tp=4: expected a number"),
    (lambda: FOUR.groups("sp"), r"axes \['sp'\]: expected one or more of dp, pp"),
    (lambda: FOUR.groups(), r"axes \[\]: expected one or more"),
    (lambda: FOUR.groups("dp", "ep"), "ep, etp and edp are the ranks of dp, cp and tp cut in"),
    (lambda: FOUR.groups("tp", "etp"), "expected the ones or the others"),
    (lambda: FOUR.coordinates(4), "rank=4 in a layout of 4 ranks: expected 0 to 3"),
    (lambda: FOUR.rank(dp=2), "dp=2 in a layout with dp=2: expected 0 to 1"),
    (lambda: FOUR.rank(ep=0), "expected coordinates along dp, pp, cp, tp"),
    (lambda: FOUR.from_string("dp2,xp3"), "'xp3' in the layout 'dp2,xp3': expected dp, pp"),
    (lambda: FOUR.from_string("dp2,dp2"), "dp twice in the layout"),
])
def test_what_is_no_layout_and_what_a_layout_has_not_is_refused_with_what_was_expected(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def on_ranks(layout):
    with pytest.raises(ValueError, match=f"is one of 64 ranks, and the world has {layout.world_size}"):
        ParallelLayout(dp=64).member("dp")
    rank = dist.get_rank()
    for axes in (("tp",), ("dp",), ("pp",), ("dp", "cp"), ("ep",), ("etp",), ("edp",), ("dp", "tp")):
        me = layout.member(*axes)
        ranks = dist.get_process_group_ranks(me.group)
        total = torch.tensor([rank])
        dist.all_reduce(total, group=me.group)
        assert layout.member(*axes).group is me.group, "a group is made once"
        assert (ranks, me.n, int(total)) == (layout.group_of(rank, *axes), len(ranks), sum(ranks))
        assert ranks.index(rank) == me.r
    mesh = layout.mesh()
    for axis in layout.axes:
        assert mesh.get_local_rank(axis) == layout.coordinates(rank)[axis]
        assert mesh.get_group(axis) is layout.member(axis).group
    return mesh.mesh.tolist(), mesh.mesh_dim_names


@pytest.mark.parametrize("text, order", [("dp2,pp2", "tp,cp,dp,pp"), ("dp2,tp2,ep2,etp2", "dp,tp,cp,pp"),
                                         ("cp3,ep3", "tp,cp,dp,pp")])
def test_process_groups_and_torchs_mesh_are_those_on_paper(text, order):
    layout = ParallelLayout.from_string(text, order=order)
    for ranks, names in launch(on_ranks, layout, world_size=layout.world_size):
        assert names == tuple(reversed(layout.axes))
        assert torch.tensor(ranks).flatten().tolist() == list(range(layout.world_size))
