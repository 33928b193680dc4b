"""JupyterLab as readers have it, on another day: widgets stand where they stood, and no page is an error.

Also what it leaves out for them, and what a locked cell says.
"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from tests.browser.conftest import pages, write_notebook
from tools.harness.browser import PAGE_S
from tools.lab.saved_widgets import STATE

pytestmark = [pytest.mark.browser, pytest.mark.ci]

WIDGETS = ("from course_lib.widgets import PipelineSchedule, predict, ZeroMemory",
           "ZeroMemory()", "ZeroMemory()", "ZeroMemory()", "PipelineSchedule()",
           'predict("How many?", options=["one", "two"])', "1 + 1")
NUM_WIDGETS = 5


@pytest.fixture
def open_lab(readers_server, chromium, request):
    """open_lab(path) is a notebook below the server's root, as it lies there, in a readers' JupyterLab."""
    with pages(chromium, request.node.name) as open_page:
        yield lambda path, connect=None: open_page(f"{readers_server.url}/lab/tree/{path.name}?reset", connect)


@pytest.fixture
def path(readers_server, request):
    return readers_server.root / f"{request.node.name[:40]}.ipynb"


def save(notebook):
    notebook.settle("window.jupyterapp.commands.execute('docmanager:save')", PAGE_S)


def require_widgets(notebook):
    notebook.page.locator(".explorable").nth(NUM_WIDGETS - 1).wait_for(timeout=1000 * PAGE_S)
    notebook.page.locator(".explorable svg").nth(NUM_WIDGETS - 2).wait_for()  # a prediction has none
    assert "Error displaying widget" not in notebook.page.locator(".jp-Notebook").inner_text()
    assert notebook.page.locator(".explorable").count() == NUM_WIDGETS


@pytest.fixture
def day_one(open_lab, path):
    """A notebook with widgets that was run and saved."""
    notebook = open_lab(write_notebook(path, *WIDGETS))
    notebook.run_all()
    require_widgets(notebook)
    save(notebook)
    return notebook


def test_on_day_two_widgets_stand_as_they_were_and_live_once_they_are_run(open_lab, path, day_one):
    once = path.stat().st_size
    for _ in range(2):  # the models of the runs before are in no output any more
        day_one.run_all()
    require_widgets(day_one)
    save(day_one)
    day_one.close()
    saved = nbformat.read(path, as_version=4).metadata.widgets[STATE]["state"]
    scripts = [model["state"]["_esm"] for model in saved.values() if "_esm" in model["state"]]
    long = [script for script in scripts if len(script) > 1000]
    assert len(scripts) == NUM_WIDGETS and len(long) == len(set(long)) == 3
    assert path.stat().st_size < 1.01 * once < NUM_WIDGETS * 150_000

    day_two = open_lab(path)  # a new kernel, which has run nothing
    require_widgets(day_two)
    save(day_two)
    day_two.run_all()
    require_widgets(day_two)
    save(day_two)
    day_two.close()
    assert path.stat().st_size < 1.01 * once
    require_widgets(open_lab(path))


@pytest.mark.sweep(words="a connection that drops at the worst moment")
def test_saved_widgets_stand_although_the_connection_drops_while_they_are_read(open_lab, path, day_one):
    day_one.close()
    asked = []

    def drop_once(socket):
        """At the second question for the kernel's widgets: the kernel's own are read, and the notebook's are next."""
        server = socket.connect_to_server()

        def forward(message):
            if b'"comm_info_request"' in (message if isinstance(message, bytes) else message.encode()):
                asked.append(socket)
            if len(asked) == 2 and asked[-1] is socket:
                server.close()
                socket.close(code=3001, reason="dropped")
            else:
                server.send(message)

        socket.on_message(forward)

    require_widgets(open_lab(path, drop_once))
    assert len(asked) > 2 and asked[-1] is not asked[0]  # it did drop, and another connection was made


@pytest.mark.sweep(words="a page that is painted before it is read")
def test_saved_widgets_stand_although_they_were_painted_before_they_were_read(day_one):
    day_one.page.evaluate("""async () => {
        const panel = window.jupyterapp.shell.currentWidget;
        const renderer = panel.content.rendermime.createRenderer("application/vnd.jupyter.widget-view+json");
        await (await renderer._manager.promise).clear_state();
        const code = panel.content.widgets.filter((cell) => cell.model.type === "code");
        code.forEach(({ model }) => model.outputs.fromJSON(model.outputs.toJSON()));
    }""")
    require_widgets(day_one)


def test_readers_have_no_menus_of_nbgrader_and_no_news_and_a_locked_cell_says_why_once_a_visit(open_lab, path):
    locked = {"editable": False}
    page = open_lab(write_notebook(path, new_code_cell("given = 1", metadata=locked), new_code_cell(
        'check("2.1", given)', metadata=locked), "mine", new_markdown_cell("text"))).page
    text = page.locator("body").inner_text()
    assert "Nbgrader" not in text and "Validate" not in text and "Jupyter news" not in text
    assert page.get_by_title("Create Assignment").count() == 0
    assert "Modified" not in page.locator(".jp-FileBrowser").inner_text()
    toasts = page.locator(".Toastify__toast")
    for index, words in enumerate(("was given and is locked", "it checks your answer", "")):
        page.locator(f'.jp-Cell[data-windowed-list-index="{index}"] .cm-content').click()
        page.keyboard.type("abc")
        if words:
            page.locator("[role=status]", has_text=words).wait_for(state="attached")
            toasts.nth(index).wait_for()
    page.wait_for_function("window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel"
                           ".getSource().includes('abc')")
    assert toasts.count() == 2
