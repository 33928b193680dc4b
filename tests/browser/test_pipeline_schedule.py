"""PipelineSchedule by keyboard alone: schedules chosen, and one placed action by action."""

import pytest

from course_lib.pipeline_parallel import one_f_one_b, zb_v
from course_lib.widgets import PipelineSchedule
from tests.browser.static_page import StaticPage

pytestmark = pytest.mark.ci


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
    widget.type("schedule", option)
    lanes(widget).and_(widget.page.locator("[tabindex]")).wait_for()
    lanes(widget).focus()


def require(widget, key, headline, start="by hand | p=2 | m=2 | slow=none | "):
    widget.wait_for(start + key)
    assert headline in widget.headline()


def press(widget, keys):
    for key in keys.split():
        widget.page.keyboard.press(key)


def test_a_schedule_is_drawn_by_keyboard_judged_as_it_grows_and_handed_to_python(open_widget):
    widget = open_widget(p=2, m=2)
    widget.wait_for("1F1B | p=2 | m=2 | slow=none")
    by_hand(widget)
    require(widget, " /  | cursor 0:0", "Place the first action")
    assert widget.root.locator("svg .here").is_visible()  # the cursor
    for keys, key, headline in (
            ("f f b", "F0 F1 B0 /  | cursor 0:3", "Legal so far, not complete: 3 actions placed"),
            ("ArrowDown w", "F0 F1 B0 / W0 | cursor 1:1", "This cannot run: rank 1: W0 stands before I0"),
            ("Backspace f b f b ArrowUp b", "F0 F1 B0 B1 / F0 B0 F1 B1 | cursor 0:4",
             "It runs, 33% idle: 0.7 of your 2 ranks are paid for and wait")):
        press(widget, keys)
        require(widget, key, headline)
    assert "yours" in widget.texts()
    assert widget.notebook.python["drawn"].schedule.actions == one_f_one_b(2, 2).actions
    names = widget.tab_order("schedule", 7)
    assert names[:6] == ["schedule", "place forward", "place backward", "place backward for the input",
                         "place backward for the weights", "take away"]
    assert names[6].startswith("rank 0, after B1; arrow keys move")


def test_the_cursor_moves_between_actions_and_what_is_placed_there_pushes_the_rest_back(open_widget):
    widget = open_widget(p=2, m=2)
    by_hand(widget, "change")
    require(widget, "F0 F1 B0 B1 / F0 B0 F1 B1 | cursor 0:4", "It runs")
    press(widget, "Home ArrowRight ArrowRight Backspace")
    require(widget, "F0 B0 B1 / F0 B0 F1 B1 | cursor 0:1", "")
    press(widget, "ArrowRight f")
    require(widget, "F0 B0 F1 B1 / F0 B0 F1 B1 | cursor 0:3", "It runs, 50% idle")
    assert lanes(widget).get_attribute("aria-label").startswith("rank 0, after F1; arrow keys move")
    widget.press("take away", "Enter")
    widget.control("place backward for the input").click()
    require(widget, "F0 B0 I0 B1 / F0 B0 F1 B1 | cursor 0:3",
            "B0 and I0: a backward is either whole (B) or split (I and W)")
    widget.root.locator("[data-key='rank 1 B0']").click()
    widget.root.locator("svg[data-key$='cursor 1:2']").wait_for()
    widget.type("schedule", "GP")
    widget.wait_for("GPipe | p=2 | m=2 | slow=none")
    assert lanes(widget).get_attribute("tabindex") is None


def test_a_schedule_set_in_python_is_shown_and_can_be_changed_chunk_by_chunk(open_widget):
    widget, start = open_widget(zb_v(2, 1)), "by hand | p=2 | m=1 | slow=none | "
    require(widget, "F0 F0.1 I0.1 W0.1 I0 W0 / F0 F0.1 I0.1 W0.1 I0 W0 | cursor 0:0", "It runs", start)
    lanes(widget).focus()
    press(widget, "End Backspace Backspace Backspace 1 w i w 0 w")  # W0.1 anew; I0.1 and W0.1 stand there already
    require(widget, "F0 F0.1 I0.1 W0.1 W0 / F0 F0.1 I0.1 W0.1 I0 W0 | cursor 0:5",
            "This cannot run: rank 0: W0 stands before I0", start)
