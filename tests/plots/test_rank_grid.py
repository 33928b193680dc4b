"""RankGrid draws every rank once for each axis, in its group's colour."""

import pytest

from course_lib.widgets import RankGrid
from tests.widgets.pictures import size_and_colours

AXES = {"tp: matrices": [[0, 1], [2, 3], [4, 5], [6, 7]], "dp: rows": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "ep: experts": [list(range(8))]}


def test_every_rank_is_drawn_once_for_each_axis_and_ranks_of_a_group_have_one_colour():
    marks = {mark.key: mark for mark in RankGrid(AXES).scene().marks if mark.kind == "rect"}
    assert len(marks) == 3 * 8
    for axis, groups in AXES.items():
        roles = [{marks[f"{axis} {rank}"].role for rank in group} for group in groups]
        assert all(len(of_group) == 1 for of_group in roles) and len(set.union(*roles)) == len(groups)


@pytest.mark.parametrize("num_groups, apart", [(8, 8), (16, 16), (32, 32), (40, 32)])
def test_groups_have_different_colours_or_it_says_from_which_on_they_come_again(num_groups, apart):
    scene = RankGrid({"dp": [[rank] for rank in range(num_groups)]}).scene()
    assert len({(mark.role, mark.tint) for mark in scene.marks if mark.kind == "rect"}) == apart
    assert ("after 32 groups" in scene.asked) == (apart < num_groups)


def test_ranks_stand_in_rows_from_left_to_right():
    marks = {mark.key: mark for mark in RankGrid(AXES, columns=2).scene().marks if mark.kind == "rect"}
    x, y, side, _ = marks["tp: matrices 0"].at
    assert marks["tp: matrices 3"].at[:2] == (x + side, y + side)


def test_it_says_what_it_shows():
    assert repr(RankGrid(AXES)) == "RankGrid: 8 ranks: tp 4 groups of 2, dp 2 groups of 4, ep 1 group of 8"
    (width, height), colours = size_and_colours(RankGrid(AXES).png())
    assert width > 900 and height > 100 and colours > 4


@pytest.mark.parametrize("groups, columns, words", [
    ({}, 4, "at least one"), ({"tp": [[0, 1], [1, 2]]}, 1, "each of 0 to 3"), ({"tp": [[0, 1, 2]]}, 2, "divides them"),
])
def test_what_is_no_grid_is_refused(groups, columns, words):
    with pytest.raises(ValueError, match=words):
        RankGrid(groups, columns)
