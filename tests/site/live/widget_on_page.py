"""A widget of a static page beside the one that Python makes here. No pytest.

A widget's figure has an id: its class, and behind "-" what tells it from others of its class on the page.
"""

import json
from types import SimpleNamespace
from typing import Any

from playwright.sync_api import Page

from course_lib import widgets
from course_lib.pictures.palette import css_class
from tests.browser.widget import Widget, controls_of
from tests.site.live.page import require_close

MODEL = "(figure) => figure.querySelector('.course-live').model"


def kind_of(name: str) -> type[widgets.Explorable]:
    return getattr(widgets, name.partition("-")[0])


def widget_of(page: Page, name: str) -> Widget:
    return Widget(SimpleNamespace(page=page), 0, page.locator(f"#{name} .explorable"))


def answered(page: Page, name: str) -> None:
    """Until Python has nothing more to say, and the picture stands still."""
    page.locator(f"#{name} .course-live[data-waits=false] .picture > svg:not([data-moving])").wait_for()


def on_the_page(page: Page, name: str) -> tuple[dict[str, Any], Any]:
    """(the parameters, the frames) of the page's widget."""
    kind = kind_of(name)
    names = [each for each in kind.controls if getattr(kind, each).metadata.get("sync")]
    return page.locator(f"#{name}").evaluate(
        f"(figure, names) => {{ const model = ({MODEL})(figure);"
        " return [Object.fromEntries(names.map((name) => [name, model.get(name)])), model.get('frames')]; }", names)


def require_what_python_draws(page: Page, name: str) -> None:
    """AssertionError where the page shows something else than a widget made in this process."""
    kind = kind_of(name)
    settings, frames = on_the_page(page, name)
    settings.pop("snapshot", None)  # of made-up ranks, which no control changes; JSON has no 1.0
    expected = kind(**settings)
    require_close(frames, json.loads(json.dumps(expected.frames)))
    widget = widget_of(page, name)
    scene = expected.current_scene()
    assert (widget.key().split(" | cursor")[0], widget.headline()) == (scene.key, scene.headline)
    painted = [{name: mark[name] for name in ("key", "at", "class", "text")} for mark in widget.painted()]
    require_close(painted, [{"key": mark.key, "at": list(mark.at), "class": css_class(mark.role), "text": mark.text}
                            for mark in scene.marks])


def move_all_controls(page: Page, name: str) -> int:
    """Move each slider and chooser by keys, sliders to their end too, and compare each time. Returns how many moves."""
    widget, moves = widget_of(page, name), 0
    for control, kind in controls_of(widget):
        if kind == "button":
            continue
        before = on_the_page(page, name)
        widget.move(control, kind)
        answered(page, name)
        assert on_the_page(page, name) != before, control
        require_what_python_draws(page, name)
        if kind == "input":
            widget.press(control, "End")
            answered(page, name)
            require_what_python_draws(page, name)
        moves += 1
    return moves
