"""Pictures of ranks, memory, routed text and networks: marks are their data, what cannot be drawn is refused."""

import itertools
from dataclasses import replace

import pytest
import torch

from course_lib.runtime import MemoryLog, record_memory
from course_lib.widgets import Chart, HeatMap, MemoryPanels, RankGrid, RankPanels, RoutedText, Strips, TreeAndTorus
from tests.widgets.pictures import size_and_colours

AXES = {"tp: matrices": [[0, 1], [2, 3], [4, 5], [6, 7]], "dp: rows": [[0, 2, 4, 6], [1, 3, 5, 7]],
        "ep: experts": [list(range(8))]}
LOSSES = [[5.0, 5.0, 5.0], [4.0, 9.0, 4.0], [3.0, 2.0, 5.0], [2.0, 2.0, 5.0], [9.0, 2.0, 5.0]]
TEXT = b"a1b2c3\n4 "
EXPERTS = [0, 1, 0, 1, 0, 1, 2, 1, 2]


@pytest.fixture(scope="module")
def log():
    model = torch.nn.Linear(100, 100)
    with record_memory(model=model) as recorded:
        model(torch.ones(4, 100)).sum().backward()
    return recorded


def test_pictures_have_a_stable_sentence_and_all_their_colours(log, snapshot):
    two = MemoryPanels("half of it", {"whole": log, "half": log}, predicted={"half": 20_000.0})
    shown = [two, RankPanels("rank 2 reads other data", {"loss": LOSSES, "work (s)": LOSSES}), RankGrid(AXES),
             RankPanels.so_far({"loss": LOSSES}), TreeAndTorus(),
             RoutedText("Letters here, digits there", TEXT, EXPERTS, 3)]
    assert "\n".join(map(repr, shown)) == snapshot
    for picture in shown:
        (width, height), colours = size_and_colours(picture.png())
        assert width > 900 and height > 100 and colours > 3, repr(picture)
    (_, one_row), (_, two_rows) = (size_and_colours(panels.png())[0] for panels in (
        two, MemoryPanels("thirds", dict.fromkeys("abc", log))))
    assert two_rows > one_row


@pytest.mark.parametrize("kind", [
    lambda **how: Chart("it is so", "x", "y", lines={"n": ([1, 2], [1, 2])}, **how),
    lambda **how: HeatMap("it is so", ["a"], ["x"], [[0.1]], 0.5, **how),
    lambda **how: Strips("it is so", "over", {"all": {"a": [1.0]}}, **how),
    lambda **how: RankPanels("it is so", {"loss": LOSSES}, **how),
    lambda **how: RoutedText("it is so", TEXT, EXPERTS, 3, **how),
], ids=["Chart", "HeatMap", "Strips", "RankPanels", "RoutedText"])
def test_a_headline_that_the_data_contradict_says_so_in_the_picture_and_in_the_text(kind):
    plain, held, broken = kind(), kind(holds=torch.tensor(True)), kind(holds=0.2 > 0.3)
    assert str(plain) == str(held) and plain.png() == held.png() != broken.png()
    assert f": not seen here: {str(plain).partition(': ')[2]}" in str(broken)


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


def test_of_several_ranks_the_fullest_is_drawn(log):
    small, large = replace(log.tracks[0], rank=0, changes=log.tracks[0].changes[:1]), replace(log.tracks[0], rank=1)
    assert MemoryPanels("two ranks", {"run": MemoryLog((0, 1), (small, large))}).fullest_tracks() == {"run": large}
    with pytest.raises(ValueError, match="predictions of other"):
        MemoryPanels("nothing", {"run": log}, {"other": 1.0})


def test_every_character_has_the_colour_of_its_expert():
    marks = {mark.key: mark for mark in RoutedText("letters here, digits there", TEXT, EXPERTS, 3).scene().marks}
    assert [marks[f"token {place}"].role for place in range(9)] == [f"rank {expert}" for expert in EXPERTS]
    assert "".join(marks[f"token {place} is"].text for place in range(9)) == "a1b2c3↵4␣"


def test_an_expert_likes_what_it_has_more_of_than_others_and_most_what_is_frequent():
    text = RoutedText("", b"aaab" b"aabb", [0, 0, 0, 0, 1, 1, 1, 1], 2)
    assert text.favourites(0) == ["a"] and text.favourites(1) == ["b"]
    assert [text.share(expert) for expert in range(2)] == [0.5, 0.5]


def walk(side: int) -> list[int]:
    """By chip, row after row: steps from chip 0 by breadth-first search over a grid whose edges are joined."""
    steps, newest = {(0, 0): 0}, {(0, 0)}
    for step in itertools.count(1):
        reached = {((row + down) % side, (column + right) % side) for row, column in newest
                   for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0))}
        newest = reached - steps.keys()
        if not newest:
            return [steps[chip] for chip in itertools.product(range(side), repeat=2)]
        steps |= dict.fromkeys(newest, step)


@pytest.mark.parametrize("side", [3, 4, 5])
def test_torus_wires_are_the_shortest_walk(side):
    assert TreeAndTorus(side).torus_wires() == walk(side)


def test_a_message_goes_up_to_the_lowest_switch_that_both_chips_are_under():
    assert TreeAndTorus(3).tree_wires() == [0, 2, 2] + 6 * [4]


@pytest.mark.parametrize("kind, words, given", [
    (RankGrid, "at least one", [({}, 4)]), (RankGrid, "each of 0 to 3", [({"tp": [[0, 1], [1, 2]]}, 1)]),
    (RankGrid, "divides them", [({"tp": [[0, 1, 2]]}, 2)]),
    (RankPanels, "expected the same of each", [("", figures) for figures in (
        {}, {"loss": []}, {"loss": [[1.0], [1.0, 2.0]]}, {"a": [[1.0]], "b": [[1.0, 2.0]]})]),
    (MemoryPanels, "no log: expected recordings", [("", {})]),
    (MemoryPanels, "empty: expected recordings", [("", {"empty": MemoryLog((), ())})]),
    (RoutedText, "one for each token", [("", TEXT, [0, 1], 3)]), (RoutedText, "0 to 2", [("", TEXT, [3] * 9, 3)]),
    (TreeAndTorus, "expected 3, 4 or 5", [(2,), (6,), (4.5,)]),
])
def test_what_cannot_be_drawn_is_refused_with_the_reason(kind, words, given):
    for arguments in given:
        with pytest.raises(ValueError, match=words):
            kind(*arguments)
