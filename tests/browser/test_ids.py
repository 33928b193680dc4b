"""Many widgets in one page, and two notebooks in tabs of one JupyterLab: no id stands twice, none leads elsewhere."""

import io
import shutil

import nbformat
import numpy as np
import pytest
from matplotlib.image import imread
from nbformat.v4 import new_code_cell, new_notebook

from tests.browser.conftest import SCREENSHOTS
from tests.browser.widget import Widget
from tools.harness.browser import PAGE_S
from tools.notebooks import METADATA

pytestmark = pytest.mark.browser

IMPORTS = "from course_lib.widgets import PipelineSchedule, ZeroMemory, predict"
TWICE = ("PipelineSchedule()", "PipelineSchedule()", "ZeroMemory()", "ZeroMemory()")
QUESTIONS = ("first = predict('Which is first?', options=['red', 'green'])\nfirst",
             "second = predict('Which is second?', options=['red', 'green'])\nsecond")
TWO_IDS = """() => {
    const ids = [...document.querySelectorAll(".explorable [id]")].map((node) => node.id);
    return ids.filter((id) => document.querySelectorAll(`[id="${id}"]`).length > 1);
}"""
# Labels whose control, and fills whose pattern, are missing or another widget's.
ASTRAY = """(root) => {
    const labels = [...root.querySelectorAll("label")].filter((label) => !root.contains(label.control));
    const fills = [...root.querySelectorAll("svg *")].map((node) => [node, /url\\("?#(.*?)"?\\)/.exec(node.style.fill)])
        .filter(([node, found]) => found && !node.closest("svg").contains(document.getElementById(found[1])));
    return [...labels.map((label) => label.textContent), ...fills.map(([, found]) => found[1])];
}"""


def stripes_are_painted(widget):
    """Whether the largest idle place has stripes on the screen: several colours, and not nearly white."""
    boxes = [box.bounding_box() for box in widget.root.locator(".picture .role-idle").all()]
    largest = max(boxes, key=lambda box: box["width"] * box["height"])
    inner = {"x": largest["x"] + 3, "y": largest["y"] + 3, "width": largest["width"] - 6,
             "height": largest["height"] - 6}
    pixels = imread(io.BytesIO(widget.page.screenshot(clip=inner)))[..., :3]
    return len(np.unique(pixels.reshape(-1, 3), axis=0)) > 2 and pixels.min(axis=2).mean() < 0.97


def test_two_widgets_of_a_class_in_one_page_have_labels_and_stripes_of_their_own(run_cells):
    notebook = run_cells(IMPORTS, *TWICE)
    widgets = [Widget(notebook, number) for number in range(len(TWICE))]
    for widget in widgets:
        assert widget.root.locator("label").count() >= 3 and widget.root.evaluate(ASTRAY) == []
    assert notebook.page.evaluate(TWO_IDS) == []
    assert all(map(stripes_are_painted, widgets[:2]))
    assert notebook.console_errors == []


def test_a_locked_option_keeps_its_dot_when_another_question_is_answered(run_cells):
    notebook = run_cells(IMPORTS, *QUESTIONS)
    first, second = (notebook.cell(place).locator(".explorable") for place in (1, 2))
    first.get_by_label("green", exact=True).check()
    first.get_by_label("Lock the prediction").click()
    first.get_by_text("Locked: green").wait_for()
    second.get_by_label("red", exact=True).check()
    second.get_by_label("Lock the prediction").click()
    second.get_by_text("Locked: red").wait_for()
    assert first.get_by_label("green", exact=True).is_checked()
    assert second.get_by_label("red", exact=True).is_checked()
    assert notebook.page.evaluate(TWO_IDS) == []


@pytest.mark.sweep(words="two notebooks in tabs")
def test_with_two_notebooks_in_tabs_the_one_in_front_is_painted_whole(tmp_path, open_notebook, lab_server):
    path = tmp_path / "front.ipynb"
    cells = [new_code_cell(source) for source in (IMPORTS, "PipelineSchedule()")]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), path)
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
        widget = Widget(notebook, 0, front)
        assert front.evaluate(ASTRAY) == [] and page.evaluate(TWO_IDS) == []
        page.screenshot(path=SCREENSHOTS / f"two_tabs_{'first' if shown else 'second'}.png")
        assert stripes_are_painted(widget)
    notebook.settle("Promise.all([...window.jupyterapp.shell.widgets('main')]"
                    ".map((each) => each.sessionContext?.shutdown()))", PAGE_S)
