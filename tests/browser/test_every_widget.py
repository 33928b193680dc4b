"""What holds for every widget in a browser: it draws what its scene says, mark by mark, and moves to what Python draws.

Keyboard, tab order, contrast, motion, narrow windows, words for who cannot see the picture. No JupyterLab, no kernel.
"""

import json

import pytest

from course_lib import widgets
from course_lib.pictures.palette import css_class
from tests.browser.conftest import VIEWPORT, photograph
from tests.browser.static_page import StaticPage
from tests.browser.widget import ASTRAY, SMALLEST, TWO_IDS, controls_of

EVERY = [name for name in widgets.__all__ if isinstance(kind := getattr(widgets, name), type)
         and issubclass(kind, widgets.Explorable) and kind is not widgets.Explorable]
ZOOMED = {"width": 683, "height": 2400}  # 1366 pixels at 200 %
LEAST_PX = 9.0
# Counts, from now on, how often the picture is drawn, and whether it was seen in motion.
COUNT = """(picture) => {
    const counts = window.counts = { drawn: 0, moved: 0 };
    window.observer?.disconnect();
    const moving = () => picture.firstChild.dataset.moving || picture.firstChild.dataset.key.endsWith("moving");
    const observer = window.observer = new MutationObserver((changes) => {
        const draws = ({ type, attributeName }) => type === "childList" || attributeName === "data-key";
        counts.drawn += changes.filter(draws).length;
        counts.moved += Boolean(moving());
    });
    observer.observe(picture, { childList: true });
    observer.observe(picture.firstChild, { attributes: true, attributeFilter: ["data-key", "data-moving"] });
}"""


@pytest.fixture(scope="module")
def page(chromium):
    """All widgets on one page, which the tests of this file share."""
    found = StaticPage(chromium, {name: getattr(widgets, name)() for name in EVERY})
    yield found
    found.context.close()


@pytest.fixture(autouse=True)
def without_errors(page):
    yield
    assert page.errors == []


def require_drawn(page, name):
    """The page shows what Python's widget, as it stands, says."""
    widget, python = page.shown[name], page.python[name]
    scene = python.current_scene()
    widget.root.locator(f"svg[data-key^={json.dumps(scene.key)}]:not([data-moving])").wait_for()  # a cursor may follow
    assert (widget.headline(), widget.root.locator(".detail").text_content()) == (scene.headline, scene.detail)
    assert widget.painted() == [
        {"kind": mark.kind, "key": mark.key, "class": css_class(mark.role), "at": list(mark.at), "text": mark.text,
         "anchor": mark.anchor, "hint": mark.hint, "tinted": mark.tint > 0, "shares": mark.shares}
        for mark in scene.marks]


def counted(page, name, control, kind):
    """How often the widget is drawn, and whether in motion, from the press of a key until another picture stands."""
    widget = page.shown[name]
    before = widget.key()
    widget.root.locator(".picture").evaluate(COUNT)
    if kind == "button":
        widget.press(control, "Space")
    else:
        widget.move(control, kind)
    widget.wait_for_another(before)
    widget.root.locator(".picture > svg:not([data-moving]):not([data-key$='moving'])").wait_for()
    return page.page.evaluate("counts")


def test_every_widget_draws_its_scene_and_has_words_names_and_a_tab_order(page):
    for name, widget in page.shown.items():
        require_drawn(page, name)
        said = widget.root.get_by_role("img").get_attribute("aria-label")
        assert said.startswith(widget.headline()) and len(said) > len(widget.headline()) + 20, name
        assert widget.root.locator(".headline").get_attribute("aria-live") == "polite"
        controls = [control for control, _ in controls_of(widget)]
        assert 1 <= len(controls) <= 4 and all(controls), name
        assert widget.tab_order(controls[0], len(controls)) == controls, name
        assert widget.root.evaluate(ASTRAY) == [], name
    assert page.page.evaluate(TWO_IDS) == []


def test_a_key_on_any_control_is_one_question_and_one_drawing_of_what_python_then_says(page):
    for name, widget in page.shown.items():
        for control, kind in controls_of(widget):
            if kind == "button":
                continue
            asked, settings = page.asked(name), page.python[name].get_state()
            counts = counted(page, name, control, kind)
            require_drawn(page, name)
            assert page.python[name].get_state() != settings, (name, control)
            assert (page.asked(name) - asked, counts["drawn"]) == (1, 1), (name, control)


def test_words_can_be_told_from_what_lies_below_them_stay_inside_and_apart(page):
    for theme in ("dark", "light"):
        page.change_theme(theme)
        for name, widget in page.shown.items():
            assert min(widget.contrasts()) >= 4.5, (name, theme)
            assert widget.crowded() == [], name
        photograph(page.page, f"every_widget_{theme}", full_page=True)


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_pictures_move_but_not_for_readers_who_want_no_motion(page, motion):
    """All scenes have one painter, and all that play one player."""
    page.page.emulate_media(reduced_motion=motion)
    for name, control, kind in (("ZeroMemory", "devices", "input"), ("PipelineSchedule", "micro-batches", "input"),
                                ("RingAllReduce", "Play", "button"), ("CollectiveExplorer", "Play", "button")):
        counts = counted(page, name, control, kind)
        assert bool(counts["moved"]) == (motion == "no-preference"), name
    page.page.emulate_media(reduced_motion="no-preference")


def test_what_is_set_in_python_reaches_picture_and_controls(page):
    for name, change, control, words in (
            ("ZeroMemory", {"num_devices": 24, "stage": 1}, "devices", "24"),  # no power of two: it joins the slider's
            ("RingAllReduce", {"num_ranks": 3, "step": 2}, "step", "2 of 4"),
            ("Stragglers", {"scheme": "local", "slack": 3}, "slack", "H = 4"),
            ("PipelineSchedule", {"order": "ZB-V", "p": 2, "slow": 1}, "slow rank", "1, twice as long")):
        with page.python[name].hold_trait_notifications():
            for parameter, value in change.items():
                setattr(page.python[name], parameter, value)
        page.tell(name)
        require_drawn(page, name)
        assert page.shown[name].control(control).get_attribute("aria-valuetext") == words


def test_letters_stay_readable_and_a_picture_wider_than_its_place_is_scrolled_by_keyboard(page):
    page.page.set_viewport_size(ZOOMED)
    for name, widget in page.shown.items():
        scroller = widget.root.locator(".scroller[tabindex]")
        assert widget.picture.evaluate(SMALLEST) >= LEAST_PX, name
        assert widget.root.evaluate("(root) => root.scrollWidth <= root.clientWidth"), name
        widget.root.get_by_role("group", name="the picture, wider than its place").focus()
        page.page.keyboard.press("ArrowRight")
        page.page.wait_for_function("(node) => node.scrollLeft > 0", arg=scroller.element_handle())
    page.page.set_viewport_size(VIEWPORT)
    page.page.wait_for_function("document.querySelector('.scroller[tabindex]') === null")


def test_two_widgets_of_a_class_have_stripes_of_their_own(chromium):
    page = StaticPage(chromium, {name: widgets.PipelineSchedule() for name in ("one", "two")})
    assert page.page.evaluate(TWO_IDS) == []
    for widget in page.shown.values():
        assert widget.stripes_are_painted() and widget.root.evaluate(ASTRAY) == []
    page.context.close()
