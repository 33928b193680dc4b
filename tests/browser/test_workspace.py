"""A reader's copy in a real JupyterLab: opened is not edited, and the answer does not stand under the question."""

import shutil

import pytest

from tools.workspace import ROOT, Workspace, digest

pytestmark = [pytest.mark.browser, pytest.mark.ci]

NAME = "notebooks/05_tensor_parallel.ipynb"


def test_a_copy_that_was_only_opened_is_not_the_readers_and_the_answer_of_a_prediction_is_folded(
        tmp_path, open_notebook):
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / NAME, tmp_path / NAME)
    Workspace(tmp_path).fill()
    copy = tmp_path / "workspace" / NAME
    notebook = open_notebook(copy)
    model = "window.jupyterapp.shell.currentWidget.context.model"
    assert not notebook.page.evaluate(f"{model}.dirty")
    notebook.page.evaluate(f"{model}.dirty = true")  # so that saving writes, with whatever JupyterLab has filled in
    notebook.settle("window.jupyterapp.commands.execute('docmanager:save')", 60)
    saved = notebook.page.evaluate("""async () => {
        const path = window.jupyterapp.shell.currentWidget.context.path;
        return JSON.stringify((await window.jupyterapp.serviceManager.contents.get(path)).content);
    }""")
    given = copy.read_text(encoding="utf-8")
    assert saved != given and digest(saved) == digest(given)
    assert digest(saved.replace("import copy", "import  copy", 1)) != digest(saved)

    cells = notebook.stored().cells
    answers = [place for place, cell in enumerate(cells) if ".against(" in cell.source]
    assert answers and all(cells[place].metadata.jupyter.source_hidden for place in answers)
    first = notebook.cell(answers[0])
    first.scroll_into_view_if_needed()
    assert not first.locator(".jp-InputArea-editor").is_visible()
    first.get_by_title("Expand cell").or_(first.locator(".jp-InputPlaceholder, .jp-Placeholder")).first.click()
    first.locator(".jp-InputArea-editor").wait_for()
