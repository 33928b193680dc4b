"""Two notebooks in tabs of one JupyterLab: no id stands twice, none leads elsewhere."""

import shutil

import pytest

from tests.browser.conftest import photograph, write_notebook
from tests.browser.widget import ASTRAY, TWO_IDS, Widget
from tools.harness.browser import PAGE_S

pytestmark = [pytest.mark.browser, pytest.mark.ci]


@pytest.mark.sweep(words="two notebooks in tabs")
def test_with_two_notebooks_in_tabs_the_one_in_front_is_painted_whole(tmp_path, open_notebook, lab_server):
    path = write_notebook(tmp_path / "front.ipynb", "from course_lib.widgets import PipelineSchedule\n"
                          "PipelineSchedule()")
    shutil.copy(path, lab_server.root / "another.ipynb")
    notebook = open_notebook(path)
    page = notebook.page
    page.evaluate("() => { window.jupyterapp.shell.mode = 'multiple-document'; }")
    notebook.run_all()
    page.locator(".explorable").wait_for()
    first = page.evaluate("window.jupyterapp.shell.currentWidget.id")
    notebook.settle("window.jupyterapp.commands.execute('docmanager:open', { path: 'another.ipynb' })", PAGE_S)
    page.wait_for_function("window.jupyterapp.shell.currentWidget.context?.path === 'another.ipynb'")
    notebook.settle("window.jupyterapp.shell.currentWidget.sessionContext.ready", PAGE_S)
    notebook.run_all()
    page.locator(".explorable").nth(1).wait_for()
    for shown in (None, first):  # the second tab, then the first again
        if shown:
            page.evaluate("(id) => window.jupyterapp.shell.activateById(id)", shown)
        front = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .explorable")
        front.locator(".picture svg").wait_for()
        assert page.locator(".explorable").count() == 2 and front.count() == 1
        assert front.evaluate(ASTRAY) == [] and page.evaluate(TWO_IDS) == []
        photograph(page, f"two_tabs_{'first' if shown else 'second'}")
        assert Widget(notebook, 0, front).stripes_are_painted()
    notebook.settle("Promise.all([...window.jupyterapp.shell.widgets('main')]"
                    ".map((each) => each.sessionContext?.shutdown()))", PAGE_S)
