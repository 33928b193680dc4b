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
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Page, sync_playwright

from tools.harness.browser import CHROMIUM_FLAGS, LabNotebook, LabServer, find_chromium
from tools.lab import settings_in_environment
from tools.notebooks import METADATA

ROOT = Path(__file__).resolve().parent.parent.parent
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
    server = LabServer(tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("lab-state"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def readers_server(chromium_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab as `make lab` starts it, with the course's settings."""
    yield from course_server(tmp_path_factory, teach=False)


def course_server(tmp_path_factory: pytest.TempPathFactory, teach: bool) -> Iterator[LabServer]:
    server = LabServer(tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("state"), settings_in_environment(teach))
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


@pytest.fixture
def open_notebook(
    lab_server: LabServer, chromium: Browser, request: pytest.FixtureRequest
) -> Iterator[Callable[[Path], LabNotebook]]:
    """open_notebook(path) opens a fresh copy, with the files beside it, in a fresh page, its kernel ready."""
    opened: list[LabNotebook] = []

    def open_copy(path: Path) -> LabNotebook:
        opened.append(in_new_page(lab_server, chromium, path))
        return opened[-1]

    yield open_copy
    for notebook in opened:
        photograph(notebook, request)
        notebook.close()


@pytest.fixture(scope="module")
def shared_page(
    lab_server: LabServer, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., LabNotebook]]:
    opened: dict[tuple[str, ...], LabNotebook] = {}

    def page_of(*sources: str) -> LabNotebook:
        if sources not in opened:
            path = tmp_path_factory.mktemp("cells") / "cells.ipynb"
            cells = [new_code_cell(source) for source in sources]
            nbformat.write(new_notebook(cells=cells, metadata=METADATA), path)
            opened[sources] = in_new_page(lab_server, chromium, path)
        return opened[sources]

    yield page_of
    for notebook in opened.values():
        notebook.close()


@pytest.fixture
def run_cells(
    shared_page: Callable[..., LabNotebook], request: pytest.FixtureRequest
) -> Iterator[Callable[..., LabNotebook]]:
    """run_cells(*sources) is a notebook of these cells, all run anew in the light theme.

    The tests of a module share its page and kernel, which take seconds to come up; what the cells show is new.
    """
    used: list[LabNotebook] = []

    def run(*sources: str, reduced_motion: bool = False) -> LabNotebook:
        notebook = shared_page(*sources)
        used.append(notebook)
        notebook.page.set_viewport_size(VIEWPORT)
        notebook.page.emulate_media(reduced_motion="reduce" if reduced_motion else "no-preference")
        notebook.change_theme("light")
        notebook.settle("window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')", 60)
        notebook.console_errors.clear()
        notebook.run_all()
        return notebook

    yield run
    for notebook in used:
        photograph(notebook, request)


def in_new_page(server: LabServer, chromium: Browser, path: Path) -> LabNotebook:
    folder = server.root / f"{len(list(server.root.iterdir()))}"
    shutil.copytree(path.parent, folder, ignore=shutil.ignore_patterns("*.ipynb", ".ipynb_checkpoints"))
    shutil.copy(path, folder)
    notebook = LabNotebook(new_page(chromium))
    notebook.listen()
    notebook.open(f"{server.url}/doc/tree/{folder.name}/{path.name}?reset")
    return notebook


def photograph(notebook: LabNotebook, request: pytest.FixtureRequest) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    notebook.page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")


def new_page(chromium: Browser) -> Page:
    return chromium.new_context(viewport=VIEWPORT).new_page()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if any(NO_CHROMIUM in str(report.longrepr) for report in skipped):
        terminalreporter.section("THE BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.line(NO_CHROMIUM, red=True)
