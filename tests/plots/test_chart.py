"""Charts, heat maps and strips show the numbers that their sentence says, and refuse what they cannot show."""

import pytest

from course_lib.pictures.palette import BLUE, MAGENTA
from course_lib.widgets import Chart, HeatMap, Strips
from tests.widgets.pictures import size_and_colours

SIZES, TIMES = [1024, 2**20, 2**26], [1e-4, 1e-3, 0.1]
MODELS = {"models": ([2018, 2024], [0.3, 400])}


def chart(**changes):
    parts = {"headline": "rings win", "x": "message (bytes)", "y": "time (s)", "log": "xy",
             "points": {"ring, measured": (SIZES, TIMES)}, "lines": {"ring, predicted": (SIZES, TIMES)}}
    return Chart(**(parts | changes))


def heat_map(**changes):
    return HeatMap(**({"headline": "two are large", "rows": ["a", "b"], "columns": ["x", "y"], "most": 0.5,
                       "values": [[0.05, 0.4], [None, 0.123]]} | changes))


def strips(**changes):
    return Strips(**({"headline": "most are near", "x": "over", "points": {
        "fitted": {"a": [1.0, 1.02]}, "others": {"a": [1.01], "b": [0.5, 2.3]}}} | changes))


def test_a_chart_is_one_png_and_one_stable_sentence():
    bundle = chart(marks={2**21: "here"})._repr_mimebundle_()
    assert bundle["text/plain"] == "Chart: rings win (time (s) over message (bytes): ring, measured, ring, predicted)"
    assert size_and_colours(bundle["image/png"])[1] > 3


def test_what_is_measured_and_what_is_predicted_of_one_thing_share_a_colour():
    colours = chart(points={"ring, measured": (SIZES, TIMES), "tree, measured": (SIZES, TIMES)})._colours()
    assert set(colours) == {"ring", "tree"} and colours["ring"] != colours["tree"]


def test_what_a_device_holds_has_the_colour_of_every_other_picture_and_nothing_else_has_it():
    series = dict.fromkeys(("rest", "activations, measured", "parameters", "more"), (SIZES, TIMES))
    colours = chart(points=series, lines={})._colours()
    assert colours["activations"] == MAGENTA and colours["parameters"] == BLUE
    assert len({*colours.values()}) == 4


@pytest.mark.parametrize("lowest", [0.5, 0, -0.02])
def test_an_axis_begins_at_0_unless_a_number_is_below(lowest):
    bottom, _ = chart(log="", points={}, lines={"loss": ([1, 2], [lowest, 1])}).figure().axes[0].get_ylim()
    assert bottom == 0 if lowest >= 0 else bottom < lowest


@pytest.mark.parametrize(("drawn", "changes", "complaint"), [
    (chart, {"log": "z"}, 'expected "", "x", "y" or "xy"'),
    (chart, {"points": {"ring": ([1, 2], [1])}}, "2 x and 1 y"),
    (chart, {"points": {"ring": ([0, 2], [1, 2])}}, "logarithmic x axis"),
    (chart, {"points": {}, "lines": {}}, "at least one series"),
    (chart, {"points": MODELS, "lines": {}, "labels": {"models": ["BERT"]}}, "2 points and 1 labels"),
    (chart, {"points": MODELS, "lines": {}, "labels": {"model": ["BERT", "Llama 3"]}},
     "labels of model: expected names of points, models"),
    (heat_map, {"values": [[1.0, 2.0]]}, "expected 2 rows of 2"),
    (heat_map, {"values": [[1.0], [2.0]]}, r"rows of \[1, 1\]"),
    (heat_map, {"most": 0}, "a share above 0"),
    (strips, {"points": {"all": {"a": []}}}, "at least one number"),
])
def test_what_cannot_be_drawn_is_refused_with_the_reason(drawn, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        drawn(**changes)


def test_labels_change_the_picture_years_do_not_begin_at_0_and_counts_do_which_have_no_halves_on_their_axis():
    years, counts, named = (chart(x=x, log="y", points=MODELS, lines={}, labels=labels) for x, labels in (
        ("year", {}), ("ranks", {}), ("year", {"models": ["BERT", "Llama 3"]})))
    assert years.png() != named.png()
    assert years.png() != counts.png()
    counts = chart(x="ranks", log="y", points={"models": ([1, 4], [0.3, 400])}, lines={})
    assert years.figure().axes[0].get_xlim()[0] > 1000 and counts.figure().axes[0].get_xlim()[0] == 0
    for xs, has_halves in ((range(3), False), ([0.0, 0.5, 1.0], True)):
        figure = chart(x="rank", log="", points={"held": (xs, [1, 2, 3])}, lines={}).figure()
        assert any(tick % 1 for tick in figure.axes[0].get_xticks()) == has_halves


def test_labels_of_near_points_lie_beside_one_another_and_off_the_line():
    near, line = ([1.00, 1.01, 1.02], [1.00, 1.01, 1.00]), ([0.9, 1.2], [0.9, 1.2])
    names = {"runs": ["dp4", "pp4", "tp4"]}
    figure = chart(x="time (s)", points={"runs": near}, lines={"even": line}, labels=names).figure()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 3 and all(box.count_overlaps(boxes) == 1 for box in boxes)  # each with itself
    (even,) = [drawn for drawn in axes.lines if drawn.get_label() == "even"]
    path = even.get_transform().transform_path(even.get_path())
    assert not any(path.intersects_bbox(box, filled=False) for box in boxes)


def test_a_heat_map_is_a_picture_a_sentence_and_all_its_numbers():
    shown = heat_map()
    (width, _), colours = size_and_colours(shown.png())
    assert width > 900 and colours > 4
    assert shown.finding() == "HeatMap: two are large (2 rows, 2 columns: x, y)"
    assert "a: 5.0%, 40%" in shown.alternative() and "b: , 12%" in shown.alternative()


def test_numbers_stand_in_the_cells_and_empty_cells_stay_empty():
    texts = [text.get_text() for text in heat_map().figure().axes[0].texts]
    assert texts == ["5.0%", "40%", "", "12%"]


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
