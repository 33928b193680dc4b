"""The widgets of a static page compute what they compute in Jupyter, with no server and no network."""

import pytest

from course_lib import widgets
from tests.site.live.page import EVERY
from tests.site.live.widget_on_page import (
    MODEL,
    answered,
    move_all_controls,
    on_the_page,
    require_what_python_draws,
)

pytestmark = [pytest.mark.browser, pytest.mark.ci]

@pytest.mark.sweep("name", few=["ZeroMemory", "RingAllReduce"], all=EVERY,
                   words=f"2 widgets of {len(EVERY)} on a static page")
def test_every_control_moves_its_widget_to_what_python_draws_without_a_network(cut_off, name):
    assert move_all_controls(cut_off.page, name) > 0
    assert cut_off.errors == []


def test_a_page_shows_every_widget_before_python_is_wanted(opened):
    found = opened("all.html")
    found.page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    for name in EVERY:
        require_what_python_draws(found.page, name)
    marks = found.page.evaluate("performance.getEntriesByType('mark').map(({ name }) => name)")
    assert "course: widget there" in marks and "course: Python wanted" not in marks and found.errors == []


def test_a_slider_that_is_held_asks_only_for_what_it_shows_when_python_is_free(cut_off):
    page = cut_off.page
    asked = page.evaluate("""async () => {
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
    }""")
    assert asked[0] <= 2 < asked[1]  # the first, and the last
    answered(page, "ZeroMemory")
    require_what_python_draws(page, "ZeroMemory")


def test_a_value_that_cannot_be_is_refused_in_pythons_words_and_taken_back(cut_off):
    page = cut_off.page
    figure = page.locator("#ExpertLoad")
    before = on_the_page(page, "ExpertLoad")
    figure.evaluate(f"(figure) => {{ const model = ({MODEL})(figure); model.set('balancing', 'luck');"
                    " return model.save_changes(); }")
    with pytest.raises(ValueError) as refused:
        widgets.ExpertLoad(balancing="luck")
    assert figure.locator(".course-status").text_content() == str(refused.value)
    assert on_the_page(page, "ExpertLoad") == before


def test_without_a_stored_state_the_recorded_picture_stands_until_a_button_is_pressed(opened):
    found = opened("recorded.html")
    page = found.page
    assert page.get_by_text("the recorded picture", exact=True).is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("Python is loading into your browser").wait_for()
    page.locator("#ZeroMemory .picture > svg").wait_for()
    assert page.evaluate("document.activeElement.closest('.controls') !== null")
    require_what_python_draws(page, "ZeroMemory")
    assert on_the_page(page, "ZeroMemory")[0]["stage"] == 2 and found.errors == []


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


def test_where_python_cannot_be_loaded_the_page_says_so_and_the_next_try_may_succeed(opened):
    found = opened("recorded.html")
    page = found.page
    page.route("**/course.zip", lambda route: route.fulfill(status=404))
    page.get_by_role("button", name="Move it").click()
    page.get_by_text("Python did not load: Error: course.zip: 404").wait_for()
    assert page.get_by_text("the recorded picture", exact=True).is_visible()
    page.unroute("**/course.zip")
    page.get_by_role("button", name="Move it").click()
    page.locator("#ZeroMemory .picture > svg").wait_for()
