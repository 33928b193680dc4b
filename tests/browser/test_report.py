"""Hints and links in the reports of `check` and `progress`, as a learner meets them in JupyterLab."""

import re

import nbformat
import pytest

from tests.browser.conftest import write_notebook

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


def hints(notebook):
    return [notebook.cell(1).locator("details", has_text=f"hint {number}").last for number in (1, 2, 3)]


def require_shown(notebook, *states):
    """Of each hint: "open", "closed", or "" where it is not to be seen."""
    for hint, state in zip(hints(notebook), states, strict=True):
        hint.locator("> summary").wait_for(state="visible" if state else "hidden")
        if state == "open":
            hint.and_(notebook.page.locator("details[open]")).wait_for()
        assert hint.evaluate("node => node.open") == (state == "open")


def test_hints_open_one_after_the_other_by_mouse_and_keyboard_and_outlive_the_kernel_and_open_exercises_are_linked(
        open_notebook, tmp_path):
    notebook = open_notebook(write_notebook(tmp_path / "wrong.ipynb", *SOURCES))
    notebook.run_all()
    require_shown(notebook, "closed", "", "")
    first, second, _ = (hint.locator("> summary") for hint in hints(notebook))
    style = first.evaluate("(node) => [getComputedStyle(node).borderTopWidth, getComputedStyle(node).cursor]")
    assert style == ["1px", "pointer"]
    first.click()
    require_shown(notebook, "open", "closed", "")
    second.focus()
    notebook.page.keyboard.press("Enter")
    require_shown(notebook, "open", "open", "closed")

    saved = tmp_path / "again" / "saved.ipynb"  # not signed: JupyterLab does not trust it
    saved.parent.mkdir()
    nbformat.write(notebook.stored(), saved)
    reopened = open_notebook(saved)
    reopened.settle("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()", 30)
    assert not reopened.page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted")
    require_shown(reopened, "closed", "", "")
    first = hints(reopened)[0].locator("> summary")
    assert first.evaluate("node => getComputedStyle(node).cursor") == "pointer"
    first.click()
    require_shown(reopened, "open", "closed", "")
    assert notebook.console_errors == []

    notebook.cell(2).get_by_role("link", name=re.compile("2.2 my_ring_all_gather")).click()
    notebook.page.wait_for_function(
        "[...window.jupyterapp.shell.widgets('main')].some(each => each.context?.path.endsWith("
        "'exercises/02_collectives/02_collectives.ipynb'))", timeout=30_000)
