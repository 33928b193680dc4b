"""A message's wires in the drawn networks are those that a walk from chip to chip finds."""

import itertools

import pytest

from course_lib.widgets import TreeAndTorus
from tests.widgets.pictures import size_and_colours


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


def test_along_an_axis_of_even_length_it_is_a_quarter_of_it_on_average():
    assert sum(TreeAndTorus(4).torus_wires()) / 16 == 2 * 4 / 4


def test_a_message_goes_up_to_the_lowest_switch_that_both_chips_are_under():
    assert TreeAndTorus(3).tree_wires() == [0, 2, 2] + 6 * [4]


def test_it_draws_itself_and_says_what_it_shows():
    shown = TreeAndTorus()
    assert "2 or 4 wires" in shown.finding() and "1 to 4 in a torus" in shown.finding()
    (width, height), colours = size_and_colours(shown.png())
    assert width > 900 and height > 250 and colours > 6


@pytest.mark.parametrize("side", [2, 6, 4.5])
def test_other_sides_are_refused(side):
    with pytest.raises(ValueError, match="expected 3, 4 or 5"):
        TreeAndTorus(side)
