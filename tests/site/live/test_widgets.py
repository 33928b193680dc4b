"""The widgets of a static page compute what they compute in Jupyter, with no server and no network."""

import json
from types import SimpleNamespace

import pytest

from course_lib import widgets
from course_lib.pictures.roles import css_class
from course_lib.widgets.base import SceneExplorable
from tests.browser.test_every_widget import AT_ITS_END, KEYS, controls_of
from tests.browser.widget import Widget
from tests.site.live.page import EVERY, require_close

pytestmark = pytest.mark.browser

MODEL = "(figure) => figure.querySelector('.course-live').model"


def widget_of(page, name):
    return Widget(SimpleNamespace(page=page), 0, page.locator(f"#{name} .explorable"))


def answered(page, name):
    """Until Python has nothing more to say, and the picture stands still."""
    page.locator(f"#{name} .course-live[data-waits=false] .picture > svg:not([data-moving])").wait_for()


def on_the_page(page, name):
    """(the parameters, the frames) of the page's widget."""
    kind = getattr(widgets, name)
    names = [each for each in kind.names() if getattr(kind, each).metadata.get("sync")]
    return page.locator(f"#{name}").evaluate(
        f"(figure, names) => {{ const model = ({MODEL})(figure);"
        " return [Object.fromEntries(names.map((name) => [name, model.get(name)])), model.get('frames')]; }", names)


def require_what_python_draws(page, name):
    kind = getattr(widgets, name)
    settings, frames = on_the_page(page, name)
    settings.pop("snapshot", None)  # of made-up ranks, which no control changes; JSON has no 1.0
    expected = kind(**settings)
    require_close(frames, json.loads(json.dumps(expected.frames)))
    widget = widget_of(page, name)
    if issubclass(kind, SceneExplorable):
        scene = expected.current_scene()
        assert (widget.key().split(" | cursor")[0], widget.headline()) == (scene.key, scene.headline)
        painted = [{name: mark[name] for name in ("key", "at", "class", "text")} for mark in widget.painted()]
        require_close(painted, [{"key": mark.key, "at": list(mark.at), "class": css_class(mark.role), "text": mark.text}
                                for mark in scene.marks])
    else:
        text = expected.frames["texts"][expected.step]
        assert (widget.key(), widget.headline()) == (text["key"], text["headline"])


@pytest.mark.sweep("name", few=["ZeroMemory", "RingAllReduce", "PipelineSchedule"], all=EVERY,
                   words="3 widgets of 16 on a static page")
def test_every_control_moves_its_widget_to_what_python_draws_without_a_network(cut_off, name):
    page = cut_off.page
    widget = widget_of(page, name)
    for control, kind in controls_of(widget):
        if kind == "button":
            continue
        before = on_the_page(page, name)
        widget.press(control, KEYS[kind][widget.control(control).evaluate(AT_ITS_END)])
        answered(page, name)
        assert on_the_page(page, name) != before, control
        require_what_python_draws(page, name)
        if kind == "input":
            widget.press(control, "End")
            answered(page, name)
            require_what_python_draws(page, name)
    assert cut_off.errors == []


def test_a_page_shows_every_widget_before_python_is_wanted(opened):
    found = opened("all.html")
    found.page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    for name in EVERY:
        require_what_python_draws(found.page, name)
    marks = found.page.evaluate("performance.getEntriesByType('mark').map(({ name }) => name)")
    assert "course: widget there" in marks and "course: Python wanted" not in marks and found.errors == []


def test_the_pipeline_is_placed_by_hand_as_in_jupyter(cut_off):
    page = cut_off.page
    widget = widget_of(page, "PipelineSchedule")
    widget.control("schedule").select_option("draw your own")
    answered(page, "PipelineSchedule")
    widget.root.locator(".picture").focus()
    page.keyboard.press("F")
    widget.root.get_by_text("Legal so far, not complete: 1 action placed").first.wait_for()
    answered(page, "PipelineSchedule")
    require_what_python_draws(page, "PipelineSchedule")


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
