"""PipelineSchedule by keyboard alone: schedules chosen, and one placed action by action."""

import pytest

from course_lib.pipeline_parallel import one_f_one_b, zb_v
from course_lib.widgets import PipelineSchedule
from tests.browser.static_page import StaticPage
from tools.harness.browser import THEMES

pytestmark = pytest.mark.ci

FIRST = "1F1B | p=4 | m=8 | slow=none"


@pytest.fixture
def open_widget(chromium):
    """A new widget on a page; one that shows `schedule`, where that is given."""
    pages = []

    def opened(schedule=None, **parameters):
        made = PipelineSchedule(**parameters)
        if schedule is not None:
            made.schedule = schedule
        pages.append(StaticPage(chromium, {"drawn": made}))
        return pages[-1].shown["drawn"]

    yield opened
    for page in pages:
        assert page.errors == []
        page.context.close()


def lanes(widget):
    return widget.root.locator(".picture")


def by_hand(widget, option="draw"):
    widget.control("schedule").focus()
    widget.page.keyboard.type(option)
    lanes(widget).and_(widget.page.locator("[tabindex]")).wait_for()
    lanes(widget).focus()


def test_a_schedule_is_drawn_by_keyboard_judged_as_it_grows_and_handed_to_python(open_widget):
    widget = open_widget(p=2, m=2)
    widget.wait_for("1F1B | p=2 | m=2 | slow=none")
    by_hand(widget)
    widget.wait_for("by hand | p=2 | m=2 | slow=none |  /  | cursor 0:0")
    assert widget.headline() == "Place the first action"
    assert widget.root.locator("svg .here").is_visible()  # the cursor
    widget.page.keyboard.type("ffb")
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 F1 B0 /  | cursor 0:3")
    assert widget.headline() == "Legal so far, not complete: 3 actions placed"
    widget.page.keyboard.press("ArrowDown")
    widget.page.keyboard.type("w")
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 F1 B0 / W0 | cursor 1:1")
    assert widget.headline() == "This cannot run: rank 1: W0 stands before I0, but needs its gradient"
    widget.page.keyboard.press("Backspace")
    widget.page.keyboard.type("fbfb")
    widget.page.keyboard.press("ArrowUp")
    widget.page.keyboard.type("b")
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 F1 B0 B1 / F0 B0 F1 B1 | cursor 0:4")
    assert widget.headline() == "It runs, 33% idle: 0.7 of your 2 ranks are paid for and wait"
    assert "yours" in widget.texts()
    assert widget.notebook.python["drawn"].schedule.actions == one_f_one_b(2, 2).actions


def test_the_cursor_moves_between_actions_and_what_is_placed_there_pushes_the_rest_back(open_widget):
    widget = open_widget(p=2, m=2)
    by_hand(widget, "change")
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 F1 B0 B1 / F0 B0 F1 B1 | cursor 0:4")
    for key in ("Home", "ArrowRight", "ArrowRight", "Backspace"):
        widget.page.keyboard.press(key)
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 B0 B1 / F0 B0 F1 B1 | cursor 0:1")
    widget.page.keyboard.press("ArrowRight")
    widget.page.keyboard.type("f")
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 B0 F1 B1 / F0 B0 F1 B1 | cursor 0:3")
    assert widget.headline().startswith("It runs, 50% idle")
    assert lanes(widget).get_attribute("aria-label").startswith("rank 0, after F1; arrow keys move")
    widget.control("take away").focus()
    widget.page.keyboard.press("Enter")
    widget.control("place backward for the input").click()
    widget.wait_for("by hand | p=2 | m=2 | slow=none | F0 B0 I0 B1 / F0 B0 F1 B1 | cursor 0:3")
    assert "B0 and I0: a backward is either whole (B) or split (I and W)" in widget.headline()
    widget.root.locator("[data-key='rank 1 B0']").click()
    widget.root.locator("svg[data-key$='cursor 1:2']").wait_for()
    widget.control("schedule").focus()
    widget.page.keyboard.type("GP")
    widget.wait_for("GPipe | p=2 | m=2 | slow=none")
    assert lanes(widget).get_attribute("tabindex") is None


def test_a_schedule_set_in_python_is_shown_and_can_be_changed_chunk_by_chunk(open_widget):
    widget = open_widget(zb_v(2, 1))
    start = "by hand | p=2 | m=1 | slow=none | "
    widget.wait_for(f"{start}F0 F0.1 I0.1 W0.1 I0 W0 / F0 F0.1 I0.1 W0.1 I0 W0 | cursor 0:0")
    lanes(widget).focus()
    for key in ("End", "Backspace", "Backspace", "Backspace"):
        widget.page.keyboard.press(key)
    widget.page.keyboard.type("1wiw0w")  # W0.1 anew; I0.1 and W0.1 stand there already
    widget.wait_for(f"{start}F0 F0.1 I0.1 W0.1 W0 / F0 F0.1 I0.1 W0.1 I0 W0 | cursor 0:5")
    assert widget.headline().startswith("This cannot run: rank 0: W0 stands before I0")


def test_by_hand_tab_reaches_the_buttons_that_place_and_then_the_lanes(open_widget):
    widget = open_widget()
    widget.wait_for(FIRST)
    by_hand(widget)
    widget.root.locator("svg[data-key$='cursor 0:0']").wait_for()
    names = widget.tab_order("schedule", 7)
    assert names[:6] == ["schedule", "place forward", "place backward", "place backward for the input",
                         "place backward for the weights", "take away"]
    assert names[6].startswith("rank 0, at the start; arrow keys move")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("parameters", [{"order": "ZB-V"}, {
    "order": "by hand", "p": 3, "m": 4, "placed": [["F0", "F1", "B0"], ["F0", "W0", "F1"], ["F0", "B0"]]}],
    ids=["two chunks", "by hand"])
def test_words_can_be_told_from_what_lies_below_them_with_two_chunks_and_by_hand(open_widget, parameters, theme):
    widget = open_widget(**parameters)
    widget.notebook.change_theme(theme)
    widget.photograph(f"pipeline_{parameters['order']}_{theme}")
    assert min(widget.contrasts()) >= 4.5
    assert widget.crowded() == []
