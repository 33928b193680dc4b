"""Hints and links in the reports of `check` and `progress`, as a learner meets them in JupyterLab."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser.conftest import SCREENSHOTS
from tools.notebooks import METADATA

pytestmark = [pytest.mark.browser, pytest.mark.ci]
SOURCES = (
    "import os, pathlib\n"
    "os.environ['COURSE_LIB_PROGRESS'] = str(pathlib.Path.cwd() / '.progress')\n"
    "for part in ('notebooks', 'exercises/02_collectives'):\n"
    "    pathlib.Path(part).mkdir(parents=True, exist_ok=True)\n"
    "pathlib.Path('exercises/02_collectives/02_collectives.ipynb').write_text(\n"
    "    '{\"cells\": [], \"metadata\": {}, \"nbformat\": 4, \"nbformat_minor\": 5}')",
    "from course_lib.grading import check, progress\n"
    "def my_ring_all_gather(chunk):\n    return chunk\n"
    "check('2.2', my_ring_all_gather)",
    "progress()",
)


def buttons(cell):
    return [cell.locator("summary", has_text=f"hint {number}") for number in (1, 2, 3)]


def is_open(button) -> bool:
    return button.evaluate("node => node.parentElement.open")


@pytest.fixture
def wrong(tmp_path):
    path = tmp_path / "wrong.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(each) for each in SOURCES], metadata=METADATA), path)
    return path


def test_hints_open_one_after_the_other_by_mouse_and_keyboard_and_outlive_the_kernel(open_notebook, wrong, tmp_path):
    notebook = open_notebook(wrong)
    notebook.run_all()
    first, second, third = buttons(notebook.cell(1))
    assert first.is_visible() and not second.is_visible() and not third.is_visible()
    assert first.evaluate("node => getComputedStyle(node).borderTopWidth") == "1px"
    assert first.evaluate("node => getComputedStyle(node).cursor") == "pointer"
    first.click()
    assert is_open(first) and second.is_visible() and not third.is_visible()
    first.focus()
    notebook.page.keyboard.press("Tab")
    assert second.evaluate("node => node === document.activeElement")
    notebook.page.keyboard.press("Enter")
    second.and_(notebook.page.locator("details[open] > summary")).wait_for()
    assert third.is_visible() and not is_open(third)
    notebook.page.keyboard.press("Tab")
    notebook.page.keyboard.press("Space")
    third.and_(notebook.page.locator("details[open] > summary")).wait_for()
    for theme in ("light", "dark"):
        notebook.change_theme(theme)
        notebook.page.screenshot(path=SCREENSHOTS / f"hints_{theme}.png")
    notebook.change_theme("light")

    saved = tmp_path / "again" / "saved.ipynb"  # not signed: JupyterLab does not trust it
    saved.parent.mkdir()
    nbformat.write(notebook.stored(), saved)
    reopened = open_notebook(saved)
    reopened.settle("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()", 30)
    first, second, _ = buttons(reopened.cell(1))
    assert not reopened.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted")
    assert first.evaluate("node => getComputedStyle(node).cursor") == "pointer"
    assert first.is_visible() and not second.is_visible()
    first.click()
    assert is_open(first) and second.is_visible()
    assert notebook.console_errors == []


def test_progress_links_the_exercises_that_are_open(open_notebook, wrong):
    notebook = open_notebook(wrong)
    notebook.run_all()
    link = notebook.cell(2).get_by_role("link", name=re.compile("2.2 my_ring_all_gather"))
    link.click()
    notebook.page.wait_for_function(
        "[...window.jupyterapp.shell.widgets('main')].some(each => each.context?.path.endsWith("
        "'exercises/02_collectives/02_collectives.ipynb'))", timeout=30_000)
