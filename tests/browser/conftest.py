"""Fixtures for tests in a real JupyterLab; a test asks for `open_notebook` or `run_cells`.

Without a Chromium these tests are skipped, with a notice nobody can overlook; with CI=true in the environment
they fail instead.
"""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tools.harness.browser import CHROMIUM_FLAGS, LabNotebook, LabServer, find_chromium
from tools.lab import settings_in_environment
from tools.notebooks import METADATA

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
VIEWPORT = {"width": 1100, "height": 2400}
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
    yield from serve(tmp_path_factory)


@pytest.fixture(scope="session")
def readers_server(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab as `make lab` starts it, with the course's settings."""
    yield from serve(tmp_path_factory, settings_in_environment())


def serve(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str] | None = None) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("state"), settings)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium_address(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one Chromium, a process of its own, which outlives the event loops that talk to it."""
    process = subprocess.Popen(
        [chromium_path, *CHROMIUM_FLAGS, "--remote-debugging-port=0",
         f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "about:blank"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    told = next(filter(None, (re.search(r"DevTools listening on (ws://\S+)", line) for line in process.stderr)))
    threading.Thread(target=process.stderr.read, daemon=True).start()  # or a full pipe would stop it
    yield told[1]
    process.terminate()
    process.wait()


# By module, because Playwright keeps an event loop running meanwhile, and nbval needs one of its own.
@pytest.fixture(scope="module")
def chromium(chromium_address: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(chromium_address)
        yield browser
        browser.close()  # the connection; Chromium stays for the next module


@contextmanager
def pages(chromium: Browser, name: str) -> Iterator[Callable[..., LabNotebook]]:
    """open_page(url) is a notebook in a fresh page, its kernel ready; all are photographed and closed in the end."""
    opened: list[LabNotebook] = []

    def open_page(url: str, connect: Callable | None = None) -> LabNotebook:
        notebook = LabNotebook(chromium.new_context(viewport=VIEWPORT).new_page())
        opened.append(notebook)
        notebook.listen()
        if connect:
            notebook.page.route_web_socket(lambda url: "/channels" in url, connect)
        notebook.open(url)
        return notebook

    yield open_page
    for number, notebook in enumerate(opened):
        if not notebook.page.is_closed():
            photograph(notebook.page, f"{name}-{number}")
            notebook.close()


@pytest.fixture
def open_notebook(lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable]:
    """open_notebook(path) opens a fresh copy, with the files beside it, in a fresh page, its kernel ready."""
    with pages(chromium, request.node.name) as open_page:
        yield lambda path: open_page(url_of_copy(lab_server, path))


def url_of_copy(server: LabServer, path: Path) -> str:
    folder = server.root / f"{len(list(server.root.iterdir()))}"
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.ipynb", ".ipynb_checkpoints"))
    shutil.copy(path, folder)
    return f"{server.url}/doc/tree/{folder.name}/{path.name}?reset"


def write_notebook(path: Path, *cells: str | nbformat.NotebookNode) -> Path:
    """A text is the source of a code cell."""
    made = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    nbformat.write(new_notebook(cells=made, metadata=METADATA), path)
    return path


@pytest.fixture(scope="module")
def shared_page(lab_server: LabServer, chromium: Browser, tmp_path_factory: pytest.TempPathFactory,
                request: pytest.FixtureRequest) -> Iterator[Callable[..., LabNotebook]]:
    opened: dict[tuple[str, ...], LabNotebook] = {}
    with pages(chromium, request.node.path.stem) as open_page:
        def page_of(*sources: str) -> LabNotebook:
            if sources not in opened:
                path = write_notebook(tmp_path_factory.mktemp("cells") / "cells.ipynb", *sources)
                opened[sources] = open_page(url_of_copy(lab_server, path))
            return opened[sources]

        yield page_of


@pytest.fixture
def run_cells(shared_page: Callable[..., LabNotebook], request: pytest.FixtureRequest) -> Iterator[Callable]:
    """run_cells(*sources) is a notebook of these cells, all run anew in the light theme.

    The tests of a module share its page and kernel, which take seconds to come up; what the cells show is new.
    """
    used: list[LabNotebook] = []

    def run(*sources: str) -> LabNotebook:
        notebook = shared_page(*sources)
        used.append(notebook)
        notebook.page.set_viewport_size(VIEWPORT)
        notebook.change_theme("light")
        notebook.settle("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')", 60)
        notebook.console_errors.clear()
        notebook.run_all()
        return notebook

    yield run
    for notebook in used:
        photograph(notebook.page, request.node.name)


def photograph(what: Page | Locator, name: str, **how: object) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    what.screenshot(path=SCREENSHOTS / f"{name}.png", **how)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_CHROMIUM in str(report.longrepr) for report in skipped):
        terminalreporter.section("THE BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(NO_CHROMIUM, red=True)
