"""HeatMap and Strips: what they show stands in their text, too, and what they cannot show is refused."""

import pytest

from course_lib.facts import published_rows
from course_lib.planner.compare import GROUPS
from course_lib.widgets import HeatMap, Strips
from tests.widgets.pictures import size_and_colours

VALUES = [[0.05, 0.4], [None, 0.123]]


def heat_map(**changes):
    return HeatMap(**({"headline": "two are large", "rows": ["a", "b"], "columns": ["x", "y"], "values": VALUES,
                       "most": 0.5} | changes))


def strips(**changes):
    return Strips(**({"headline": "most are near", "x": "over", "points": {
        "fitted": {"a": [1.0, 1.02]}, "others": {"a": [1.01], "b": [0.5, 2.3]}}} | changes))


def test_a_heat_map_is_a_picture_a_sentence_and_all_its_numbers():
    shown = heat_map()
    (width, _), colours = size_and_colours(shown.png())
    assert width > 900 and colours > 4
    assert shown.finding() == "HeatMap: two are large (2 rows, 2 columns: x, y)"
    assert "a: 5.0%, 40%" in shown.alternative() and "b: , 12%" in shown.alternative()


def test_numbers_stand_in_the_cells_and_empty_cells_stay_empty():
    texts = [text.get_text() for text in heat_map().figure().axes[0].texts]
    assert texts == ["5.0%", "40%", "", "12%"]


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"values": [[1.0, 2.0]]}, "expected 2 rows of 2"),
    ({"values": [[1.0], [2.0]]}, r"rows of \[1, 1\]"),
    ({"most": 0}, "a share above 0"),
])
def test_a_heat_map_of_other_sizes_than_its_names_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        heat_map(**changes)


def test_strips_show_every_point_on_a_linear_axis_and_the_band():
    (axes,) = strips().figure().axes
    shown = sorted(x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata())
    assert shown == [0.5, 1.0, 1.01, 1.02, 2.3] and axes.get_xscale() == "linear"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert "b, others: 2 from 0.50 to 2.30" in strips().alternative()


def test_near_points_of_a_kind_do_not_hide_each_other():
    (axes,) = strips(points={"all": {"a": [1.0, 1.001, 1.002, 2.0]}}).figure().axes
    (drawn,) = (line for line in axes.lines if line.get_marker() == "o")
    assert len({(round(x, 1), y) for x, y in zip(drawn.get_xdata(), drawn.get_ydata())}) == 4


def test_strips_without_points_are_refused():
    with pytest.raises(ValueError, match="at least one number"):
        strips(points={"all": {"a": []}})


def test_every_group_of_published_rows_has_a_name_in_words():
    groups = {row["group"] for row in published_rows()}
    assert groups == set(GROUPS) and len(set(GROUPS.values())) == len(GROUPS)
