"""A page with all widgets in a real browser. Without Chromium these tests are skipped; with CI=true they fail.

Where Pyodide cannot be had from npm they are skipped everywhere, and the report says so: `make site` fails there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import VIEWPORT, chromium, chromium_address, chromium_path  # noqa: F401
from tests.site.live.every_page import Look
from tests.site.live.page import EVERY, QUESTIONS, Opened, figure, question, served, write_page
from tools.site.live.build import NoPyodide, build, fetch_pyodide

PAGES = {
    "all": [*map(figure, EVERY), *(question(words, *how) for words, how in QUESTIONS.items())],
    "some": [figure("ZeroMemory"), figure("RingAllReduce"), question("Which?", "", ["ring", "tree"])],
    "recorded": [figure("ZeroMemory", {"stage": 2}, stored=False)],
    "planner": ['<div class="course-planner"></div>'],
    "faulty": ['<h1 style="color: #777777; background: #707070; width: 500px">hard to read</h1>',
               '<img alt="" src="http://tracker.test/1.gif">', figure("ZeroMemory").replace(" on each", " on a")],
}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site with PAGES."""
    try:
        fetch_pyodide()
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


@pytest.fixture
def opened(chromium: Browser, address: str) -> Iterator:  # noqa: F811
    """opened(name) is one of PAGES in a browser that knows nothing yet."""
    pages: list[Opened] = []

    def open_page(name: str) -> Opened:
        pages.append(Opened(chromium.new_context(viewport=VIEWPORT), f"{address}/{name}"))
        return pages[-1]

    yield open_page
    for each in pages:
        each.context.close()


@pytest.fixture
def look(chromium: Browser, address: str) -> Look:  # noqa: F811
    return Look(chromium.new_context(viewport=VIEWPORT), address.removesuffix("/pages"))
