"""The one palette, the one table of roles, and the painter that uses them: what a scene says is on the paper."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_lib.pictures.painter import paint
from course_lib.pictures.palette import PAPER, RANK_COLOURS, ROLES, contrast, ink_on, mix, on_white, style_sheet
from course_lib.pictures.scene import Mark, Scene, Sheet, bars, round_ticks
from course_lib.pictures.units import gigabytes, human_bytes, human_seconds, mebibytes


def scene_of(sheet, height=100):
    return Scene("key", "asked", "A finding", "why", "sentence", "alternative", height, tuple(sheet.marks))


def colour_at(figure, x, y):
    """Of the pixel at (x, y) of the scene."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    right, up = figure.axes[0].transData.transform((x, y))
    pixels = np.asarray(canvas.buffer_rgba())
    return "#{:02X}{:02X}{:02X}".format(*pixels[pixels.shape[0] - 1 - int(up), int(right)][:3])


@pytest.mark.parametrize("role", [name for name, role in ROLES.items() if role.fill != "none" and not role.size])
def test_a_rectangle_has_the_colour_of_its_role_on_the_paper(role):
    sheet = Sheet()
    sheet.rect("box", role, 100, 20, 60, 40)
    figure = paint(scene_of(sheet))
    if not ROLES[role].striped:
        assert colour_at(figure, 130, 40) == on_white(ROLES[role].fill).upper()
    assert colour_at(figure, 90, 40) == colour_at(figure, 130, 70) == PAPER


def test_a_tint_lightens_and_later_marks_lie_on_earlier_ones():
    sheet = Sheet()
    sheet.rect("below", "forward", 100, 20, 60, 40)
    sheet.rect("above", "backward", 130, 20, 60, 40, tint=0.5)
    figure = paint(scene_of(sheet))
    assert colour_at(figure, 115, 40) == on_white(ROLES["forward"].fill)
    assert colour_at(figure, 145, 40) == mix(on_white(ROLES["backward"].fill), 0.5)


def test_words_can_be_told_from_paper_and_ranks_and_every_role_has_a_rule_whose_variables_are_set():
    for name, role in ROLES.items():
        assert not role.size or name == "on dark" or contrast(on_white(role.fill), PAPER) >= 4.5, name
    for colour in RANK_COLOURS:
        assert contrast(ink_on(colour).replace("white", PAPER), colour) >= 4.5, colour
    sheet = style_sheet(".widget", ".dark .widget")
    assert all(f".role-{name.replace(' ', '-')} " in sheet for name in ROLES)
    used = {part.split(")")[0] for part in sheet.split("var(--")[1:] if not part.startswith("jp-")}
    assert used and all(f"--{name}: " in sheet for name in used)


def test_a_mark_without_a_role_or_with_too_few_numbers_and_a_key_that_stands_twice_are_refused():
    with pytest.raises(AssertionError, match="role 'sideways' is not in roles.ROLES"):
        Mark("rect", "box", "sideways", (0, 0, 1, 1))
    with pytest.raises(AssertionError, match="line at"):
        Mark("line", "axis", "axis", (0, 0))
    sheet = Sheet()
    sheet.rect("box", "forward", 0, 0, 1, 1)
    sheet.rect("box", "forward", 1, 0, 1, 1)
    with pytest.raises(AssertionError, match="keys stand twice: \\['box'\\]"):
        scene_of(sheet)


def test_a_mark_has_only_what_differs_as_json_and_words_that_do_not_fit_stay_away():
    sheet = Sheet()
    sheet.rect("box", "forward", 0, 0, 20.123, 10)
    sheet.inside("box is", "on dark", 0, 0, 20, 10, "much too long", "7")
    sheet.inside("other is", "on dark", 0, 0, 20, 10, "much too long")
    box, seven = scene_of(sheet).plain()["marks"]
    assert box == {"kind": "rect", "key": "box", "role": "forward", "at": [0, 0, 20.12, 10]}
    assert (seven["text"], seven["anchor"], seven["at"][0]) == ("7", "middle", 10)


def test_the_longest_bar_ends_at_the_right():
    sheet = Sheet()
    bars(sheet, 100, 500, 100, 20, [("a", 1.0, "one", False), ("b", 2.0, "two", True)])
    marks = {mark.key: mark for mark in scene_of(sheet).marks}
    assert (marks["a compared"].at[2], marks["b compared"].at[2]) == (200, 400)


@pytest.mark.parametrize("end", [1e-5, 0.0488, 1.0, 99.0])
def test_ticks_are_round_and_cover_the_axis(end):
    at = round_ticks(end)
    assert at[0] == 0 and 5 <= len(at) <= 14 and at[-1] <= end < at[-1] + 2 * at[1]


def test_bytes_have_a_decimal_unit_those_that_are_compared_one_unit_and_times_three_figures():
    assert [human_bytes(size) for size in (0, 999, 1000, 882_200, 15e6, 2e12)] == [
        "0 B", "999 B", "1.0 kB", "882.2 kB", "15.0 MB", "2000.0 GB"]
    assert [gigabytes(size) for size in (0, 1.75e9, 14e9, 2794e9)] == ["0 GB", "1.75 GB", "14 GB", "2,794 GB"]
    assert [mebibytes(size) for size in (3 * 2**18, 25 * 2**20, 154_389_504, 6_230_444_800)] == [
        "768 KiB", "25 MiB", "147 MiB", "5,942 MiB"]
    assert [human_seconds(s) for s in (0, 1.6e-5, 0.000_38, 0.000_999_8, 0.0163, 81.04, 0.99996, 250.2, 1234.0)] == [
        "0 s", "16 µs", "380 µs", "1 ms", "16.3 ms", "81 s", "1 s", "250 s", "1234 s"]
