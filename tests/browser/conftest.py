"""Fixtures for tests in a real JupyterLab; a test asks for `open_notebook`.

Without a Chromium these tests are skipped, with a notice nobody can overlook; with CI=true in the environment
they fail instead.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.lab import CHROMIUM_FLAGS, LabNotebook, LabServer, find_chromium

ROOT = Path(__file__).resolve().parent.parent.parent
SCREENSHOTS = ROOT / "build" / "screenshots"
NO_CHROMIUM = ("no Chromium or Chrome was found: install one (Debian: apt-get install chromium), "
               "or name it: CHROMIUM=/path/to/chrome")


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = find_chromium()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(NO_CHROMIUM)
    return path


@pytest.fixture(scope="session")
def lab_server(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("lab-state"))
    yield server
    server.stop()


# By module, because Playwright keeps an event loop running meanwhile, and nbval needs one of its own.
@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_notebook(
    lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path], LabNotebook]]:
    """open_notebook(path) opens a fresh copy, with the files beside it, in a fresh page, its kernel ready."""
    opened: list[LabNotebook] = []

    def open_copy(path: Path) -> LabNotebook:
        folder = lab_server.root / f"{len(list(lab_server.root.iterdir()))}"
        shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.ipynb", ".ipynb_checkpoints"))
        shutil.copy(path, folder)
        notebook = LabNotebook(new_page(chromium))
        opened.append(notebook)
        notebook.listen()
        notebook.open(f"{lab_server.url}/doc/tree/{folder.name}/{path.name}?reset")
        return notebook

    yield open_copy
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for notebook in opened:
        notebook.page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")
        notebook.close()


def new_page(chromium: Browser) -> Page:
    return chromium.new_context(viewport={"width": 1100, "height": 2400}).new_page()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_CHROMIUM in str(report.longrepr) for report in skipped):
        terminalreporter.section("THE BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(NO_CHROMIUM, red=True)
