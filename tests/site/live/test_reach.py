"""Widgets on a static page for everybody: axe-core, keyboard, narrow screens, both themes."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.site.live.page import EVERY
from tests.site.live.widget_on_page import widget_of

pytestmark = [pytest.mark.browser, pytest.mark.ci]

DARKER = "document.documentElement.classList.toggle('dark', {})"


def serious(page):
    """What axe-core finds serious, by rule, with the places."""
    found = Axe().run(page).response["violations"]
    return {each["id"]: [node["html"][:200] for node in each["nodes"]] for each in found
            if each["impact"] in ("serious", "critical")}


@pytest.mark.sweep("dark", few=["false"], all=["false", "true"], words="1 theme of 2")
@pytest.mark.parametrize("name", ["all", "recorded", "planner"])
def test_axe_finds_nothing_serious_in_light_and_dark(opened, name, dark):
    page = opened(f"{name}.html").page
    if name == "all":
        page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
        page.locator(".prediction").nth(1).wait_for()
    page.evaluate(DARKER.format(dark))
    for details in page.locator("details").all():
        details.evaluate("(node) => { node.open = true; }")
    assert serious(page) == {}
    page.locator("h1").evaluate("(node) => { node.style.color = '#777777'; node.style.background = '#707070'; }")
    assert "color-contrast" in serious(page)  # so it looks


def test_widgets_take_the_colours_of_the_page_when_its_theme_changes(opened):
    page = opened("all.html").page
    page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    for dark, light in (("true", "false"), ("false", "true")):
        page.evaluate(DARKER.format(dark))
        page.locator(f"#ZeroMemory .course-live[data-jp-theme-light={light}]").wait_for()
        assert min(min(widget_of(page, name).contrasts()) for name in ("ZeroMemory", "RingAllReduce")) >= 4.5


@pytest.mark.parametrize("name", ["all", "recorded", "planner"])
def test_nothing_is_wider_than_a_telephone(opened, name):
    page = opened(f"{name}.html").page
    if name == "all":
        page.locator(f"#{EVERY[-1]} .picture > svg").wait_for()
    page.set_viewport_size({"width": 360, "height": 780})
    wide = page.evaluate("""[...document.querySelectorAll("body *")]
        .filter((node) => !node.closest(".scroller > *, pre") && node.getBoundingClientRect().right > innerWidth + 1)
        .map((node) => node.outerHTML.slice(0, 120))""")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, wide
