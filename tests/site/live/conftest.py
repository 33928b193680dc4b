"""A page with all widgets in a real browser. Without Chromium these tests are skipped; with CI=true they fail.

Where Pyodide cannot be had from npm they are skipped everywhere, and the report says so: `make site` fails there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import SCREENSHOTS, chromium, chromium_address, chromium_path  # noqa: F401
from tests.site.live.page import EVERY, QUESTIONS, figure, question, served, write_page
from tools.site.live.build import build
from tools.site.live.pyodide import NoPyodide, fetch

PAGES = {
    "all": [*map(figure, EVERY), *(question(words, *how) for words, how in QUESTIONS.items())],
    "recorded": [figure("ZeroMemory", {"stage": 2}, stored=False)],
    "planner": ['<div class="course-planner"></div>'],
}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site with PAGES."""
    try:
        fetch()
    except NoPyodide as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("site")
    build(folder / "course")
    for name, parts in PAGES.items():
        write_page(folder / "pages" / f"{name}.html", *parts)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as url:
        yield f"{url}/pages"


class Opened:
    """A page in a browser that knows nothing yet, and what it complains about."""

    def __init__(self, browser: Browser, address: str, **how: object) -> None:
        self.context = browser.new_context(viewport={"width": 1100, "height": 2400}, **how)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(180_000)  # a busy machine takes long to compile Python
        self.errors: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address)


@pytest.fixture
def opened(chromium: Browser, address: str) -> Iterator:  # noqa: F811
    """opened(name) is one of PAGES."""
    pages: list[Opened] = []

    def open_page(name: str, **how: object) -> Opened:
        pages.append(Opened(chromium, f"{address}/{name}", **how))
        return pages[-1]

    yield open_page
    for each in pages:
        each.context.close()


@pytest.fixture(scope="module")
def cut_off(chromium: Browser, address: str) -> Iterator[Opened]:  # noqa: F811
    """The page of all widgets after one of them was moved: from then on there is no network."""
    found = Opened(chromium, f"{address}/all.html")
    found.page.locator("#RingAttentionSteps input").first.press("ArrowRight")
    found.page.locator("#RingAttentionSteps .course-live[data-waits=false]").wait_for()
    found.context.set_offline(True)
    yield found
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    found.page.screenshot(path=SCREENSHOTS / "site_all.png", full_page=True)
    found.context.close()
