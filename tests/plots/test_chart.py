"""Charts say what they show, refuse what they cannot, and are not blank."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

from course_lib.pictures.palette import BLUE, MAGENTA
from course_lib.widgets import Chart

SIZES, TIMES = [1024, 2**20, 2**26], [1e-4, 1e-3, 0.1]


def chart(**changes):
    parts = {"headline": "rings win", "x": "message (bytes)", "y": "time (s)", "log": "xy",
             "points": {"ring, measured": (SIZES, TIMES)}, "lines": {"ring, predicted": (SIZES, TIMES)}}
    return Chart(**(parts | changes))


def test_a_chart_is_one_png_and_one_stable_sentence():
    bundle = chart(marks={2**21: "here"})._repr_mimebundle_()
    assert bundle["text/plain"] == "Chart: rings win (time (s) over message (bytes): ring, measured, ring, predicted)"
    assert np.unique(imread(io.BytesIO(bundle["image/png"]))[..., :3].reshape(-1, 3), axis=0).shape[0] > 20


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


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"log": "z"}, 'expected "", "x", "y" or "xy"'),
    ({"points": {"ring": ([1, 2], [1])}}, "2 x and 1 y"),
    ({"points": {"ring": ([0, 2], [1, 2])}}, "logarithmic x axis"),
    ({"points": {}, "lines": {}}, "at least one series"),
])
def test_a_chart_that_cannot_be_drawn_says_why(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        chart(**changes)


def test_years_do_not_begin_at_0_and_counts_do():
    years = chart(x="year", log="y", points={"models": ([2018, 2024], [0.3, 400])}, lines={})
    counts = chart(x="ranks", log="y", points={"models": ([1, 4], [0.3, 400])}, lines={})
    assert years._far_from_0() and not counts._far_from_0()
    assert years.png() != counts.png()


def test_labels_name_points_and_must_be_as_many():
    series = {"models": ([2018, 2024], [0.3, 400])}
    plain = chart(x="year", log="y", points=series, lines={})
    named = chart(x="year", log="y", points=series, lines={}, labels={"models": ["BERT", "Llama 3"]})
    assert plain.png() != named.png()
    with pytest.raises(ValueError, match="2 points and 1 labels"):
        chart(points=series, lines={}, labels={"models": ["BERT"]})
    with pytest.raises(ValueError, match="labels of model: expected names of points, models"):
        chart(points=series, lines={}, labels={"model": ["BERT", "Llama 3"]})


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


def test_what_is_counted_has_no_halves_on_its_axis():
    def ticks(xs):
        counted = chart(x="rank", log="", points={"held": (xs, [1, 2, 3])}, lines={})
        figure = counted.figure()
        return [tick for tick in figure.axes[0].get_xticks() if tick % 1]

    assert ticks(range(3)) == [] and ticks([0.0, 0.5, 1.0]) != []
