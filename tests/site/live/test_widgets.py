"""The widgets of a static page compute what they compute in Jupyter, with no server and no network; and pages are for
everybody: axe-core, keyboard, narrow screens, both themes, as `make every-page` looks.
"""

import pytest

from course_lib import widgets
from tests.browser.conftest import photograph
from tests.site.live.page import EVERY
from tests.site.live.widget_on_page import (
    MODEL,
    answered,
    move_all_controls,
    on_the_page,
    require_what_python_draws,
    widget_of,
)

pytestmark = [pytest.mark.browser, pytest.mark.ci]

# Drags the first slider of ZeroMemory from end to end; [how often Python was asked, how many places it has].
DRAG = """async () => {
    const slider = document.querySelector("#ZeroMemory input");
    const posted = [];
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (message) { posted.push(message); return post.call(this, message); };
    for (let place = 0; place <= Number(slider.max); place += 1) {
        slider.value = place;
        slider.dispatchEvent(new Event("input", { bubbles: true }));
    }
    await new Promise((done) => {
        const look = () => (document.querySelector("#ZeroMemory .course-live").dataset.waits === "false"
            ? done() : requestAnimationFrame(look));
        look();
    });
    Worker.prototype.postMessage = post;
    return [posted.length, Number(slider.max) + 1];
}"""


def test_a_page_shows_every_widget_before_python_is_wanted_and_then_needs_no_network(opened):
    found = opened("all.html")
    page = found.page
    page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    for name in EVERY:
        require_what_python_draws(page, name)
    marks = page.evaluate("performance.getEntriesByType('mark').map(({ name }) => name)")
    assert "course: widget there" in marks and "course: Python wanted" not in marks
    for theme in ("dark", "light"):
        page.evaluate(f"document.body.dataset.theme = '{theme}'")
        page.locator(f"#ZeroMemory .course-live[data-jp-theme-light={str(theme == 'light').lower()}]").wait_for()
        assert min(min(widget_of(page, name).contrasts()) for name in ("ZeroMemory", "RingAllReduce")) >= 4.5

    page.locator("#RingAttentionSteps input").first.press("ArrowRight")
    answered(page, "RingAttentionSteps")
    found.context.set_offline(True)
    for name in ("ZeroMemory", "RingAllReduce"):
        assert move_all_controls(page, name) > 0
    asked, places = page.evaluate(DRAG)
    assert asked <= 2 < places  # the first, and the last: what is shown when Python is free
    answered(page, "ZeroMemory")
    require_what_python_draws(page, "ZeroMemory")

    before = on_the_page(page, "ExpertLoad")  # what cannot be is refused in Python's words, and taken back
    page.locator("#ExpertLoad").evaluate(f"(figure) => {{ const model = ({MODEL})(figure); model.set('balancing', "
                                         "'luck'); return model.save_changes(); }")
    with pytest.raises(ValueError) as refused:
        widgets.ExpertLoad(balancing="luck")
    assert page.locator("#ExpertLoad .course-status").text_content() == str(refused.value)
    assert on_the_page(page, "ExpertLoad") == before
    photograph(page, "site_all", full_page=True)
    assert found.errors == []


def test_a_recorded_picture_stands_until_a_button_is_pressed_and_says_where_python_cannot_be_loaded(opened):
    page = opened("recorded.html").page
    picture = page.get_by_text("the recorded picture", exact=True)
    page.route("**/course.zip", lambda route: route.fulfill(status=404))
    assert picture.is_visible()
    page.get_by_role("button", name="Move it").click()
    page.get_by_text("Python did not load: Error: course.zip: 404").wait_for()
    assert picture.is_visible()
    page.unroute("**/course.zip")
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("Python is loading into your browser").wait_for()
    page.locator("#ZeroMemory .picture > svg").wait_for()
    assert page.evaluate("document.activeElement.closest('.controls') !== null")
    require_what_python_draws(page, "ZeroMemory")
    assert on_the_page(page, "ZeroMemory")[0]["stage"] == 2


def test_with_the_network_cut_after_a_page_was_opened_all_stands_and_moves_when_it_is_back(opened):
    found = opened("all.html")
    page, slider = found.page, found.page.locator("#ZeroMemory input").first
    page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    found.context.set_offline(True)
    before = on_the_page(page, "ZeroMemory")
    slider.press("ArrowRight")
    page.get_by_text("Python did not load: ").wait_for()
    assert "What you see is how it was before." in page.locator("#ZeroMemory .course-status").text_content()
    assert on_the_page(page, "ZeroMemory")[1] == before[1]
    for name in EVERY[:4]:
        assert page.locator(f"#{name} .picture > svg").is_visible()
    found.context.set_offline(False)
    slider.press("ArrowRight")
    page.locator("#ZeroMemory .course-status", has_text="did not load").wait_for(state="hidden")
    answered(page, "ZeroMemory")
    assert on_the_page(page, "ZeroMemory") != before
    require_what_python_draws(page, "ZeroMemory")


@pytest.mark.sweep("name", few=["some", "recorded", "planner"], all=["all", "recorded", "planner"],
                   words="2 widgets of all on a static page")
def test_no_error_nothing_serious_nothing_wider_than_a_telephone_and_every_control_does_what_python_says(look, name):
    look.at(f"pages/{name}.html")
    assert "\n".join(look.faults) == ""
    assert (look.counts["moves"] > 5) == (name in ("all", "some"))


def test_each_fault_is_found(look):
    look.at("pages/faulty.html")
    assert {fault.split(": ")[1] for fault in look.faults} == {
        "axe light", "axe dark", "wider than 360 px", "console errors", "differ from Python"}
