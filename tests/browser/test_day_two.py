"""JupyterLab as readers have it, on another day: widgets stand where they stood, and no page is an error.

Also what it leaves out for them, and what a locked cell says.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from playwright.sync_api import WebSocketRoute

from tests.browser.conftest import SCREENSHOTS, new_page
from tools.harness.browser import PAGE_S, LabNotebook
from tools.lab.saved_widgets import STATE
from tools.notebooks import METADATA

pytestmark = [pytest.mark.browser, pytest.mark.ci]

WIDGETS = ("from course_lib.widgets import PipelineSchedule, predict, ZeroMemory",
           "ZeroMemory()", "ZeroMemory()", "ZeroMemory()", "PipelineSchedule()",
           'predict("How many?", options=["one", "two"])', "1 + 1")
ERROR = "Error displaying widget"
NUM_WIDGETS = 5


@pytest.fixture
def open_lab(readers_server, chromium, request) -> Iterator[Callable[..., LabNotebook]]:
    opened: list[LabNotebook] = []

    def open_path(path: Path, connect: Callable[[WebSocketRoute], None] | None = None) -> LabNotebook:
        opened.append(LabNotebook(new_page(chromium)))
        opened[-1].listen()
        if connect:
            opened[-1].page.route_web_socket(lambda url: "/channels" in url, connect)
        opened[-1].open(f"{readers_server.url}/lab/tree/{path.relative_to(readers_server.root)}?reset")
        return opened[-1]

    yield open_path
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, notebook in enumerate(opened):
        if not notebook.page.is_closed():
            notebook.page.screenshot(path=SCREENSHOTS / f"{request.node.name}-{number}.png")
            notebook.close()


@pytest.fixture
def write(readers_server, request):
    def write_cells(cells) -> Path:
        path = readers_server.root / f"{request.node.name[:40]}.ipynb"
        nbformat.write(new_notebook(cells=cells, metadata=METADATA), path)
        return path
    return write_cells


def save(notebook: LabNotebook) -> None:
    notebook.settle("window.jupyterapp.commands.execute('docmanager:save')", PAGE_S)


def widgets_painted(notebook: LabNotebook) -> int:
    notebook.page.locator(".explorable").nth(NUM_WIDGETS - 1).wait_for(timeout=1000 * PAGE_S)
    notebook.page.locator(".explorable svg").first.wait_for()
    assert ERROR not in notebook.page.locator(".jp-Notebook").inner_text()
    return notebook.page.locator(".explorable").count()


@pytest.fixture
def day_one(open_lab, write) -> tuple[Path, LabNotebook]:
    """A notebook with widgets that was run and saved, and its page."""
    path = write([new_code_cell(source) for source in WIDGETS])
    notebook = open_lab(path)
    notebook.run_all()
    assert widgets_painted(notebook) == NUM_WIDGETS
    save(notebook)
    return path, notebook


def test_on_day_two_widgets_stand_as_they_were_and_live_once_they_are_run(open_lab, day_one):
    path, day_one = day_one
    once = path.stat().st_size
    for _ in range(2):  # the models of the runs before are in no output any more
        day_one.run_all()
    assert widgets_painted(day_one) == NUM_WIDGETS
    save(day_one)
    day_one.close()

    saved = nbformat.read(path, as_version=4).metadata.widgets[STATE]["state"]
    scripts = [model["state"]["_esm"] for model in saved.values() if "_esm" in model["state"]]
    assert len(scripts) == NUM_WIDGETS
    assert path.stat().st_size < 1.01 * once < NUM_WIDGETS * 150_000

    day_two = open_lab(path)  # a new kernel, which has run nothing
    assert widgets_painted(day_two) == NUM_WIDGETS
    assert day_two.page.locator(".explorable svg").count() >= NUM_WIDGETS - 1
    save(day_two)
    day_two.run_all()
    assert widgets_painted(day_two) == NUM_WIDGETS
    save(day_two)
    day_two.close()
    assert path.stat().st_size < 1.01 * once
    assert widgets_painted(open_lab(path)) == NUM_WIDGETS


@pytest.mark.sweep(words="a connection that drops at the worst moment")
def test_saved_widgets_stand_although_the_connection_drops_while_they_are_read(open_lab, day_one):
    path, day_one = day_one
    day_one.close()
    asked = []

    def drop_once(socket: WebSocketRoute) -> None:
        """At the second question for the kernel's widgets: the kernel's own are read, and the notebook's are next."""
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            text = message if isinstance(message, bytes) else message.encode()
            if b'"comm_info_request"' in text:
                asked.append(socket)
            if len(asked) == 2 and asked[-1] is socket:
                server.close()
                socket.close(code=3001, reason="dropped")
            else:
                server.send(message)

        socket.on_message(forward)

    assert widgets_painted(open_lab(path, drop_once)) == NUM_WIDGETS
    assert len(asked) > 2 and asked[-1] is not asked[0]  # it did drop, and another connection was made


PAINT_BEFORE_THEY_ARE_READ = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    const renderer = panel.content.rendermime.createRenderer("application/vnd.jupyter.widget-view+json");
    await (await renderer._manager.promise).clear_state();
    const code = panel.content.widgets.filter((cell) => cell.model.type === "code");
    code.forEach(({ model }) => model.outputs.fromJSON(model.outputs.toJSON()));
}"""


@pytest.mark.sweep(words="a page that is painted before it is read")
def test_saved_widgets_stand_although_they_were_painted_before_they_were_read(day_one):
    _, day_one = day_one
    day_one.page.evaluate(PAINT_BEFORE_THEY_ARE_READ)
    assert widgets_painted(day_one) == NUM_WIDGETS


def test_readers_have_no_menus_of_nbgrader_and_no_news(open_lab, write):
    notebook = open_lab(write([new_code_cell("1 + 1")]))
    text = notebook.page.locator("body").inner_text()
    assert "Nbgrader" not in text and "Validate" not in text and "Jupyter news" not in text
    assert notebook.page.get_by_title("Create Assignment").count() == 0
    assert "Modified" not in notebook.page.locator(".jp-FileBrowser").inner_text()


def test_a_locked_cell_that_is_typed_into_says_why_once_a_visit(open_lab, write):
    locked = {"editable": False}
    notebook = open_lab(write([new_code_cell("given = 1", metadata=locked),
                               new_code_cell('check("2.1", given)', metadata=locked), new_code_cell("mine"),
                               new_markdown_cell("text")]))
    toasts = notebook.page.locator(".Toastify__toast")

    def type_into(index: int, keys: str) -> None:
        notebook.cell(index).locator(".cm-content").click()
        for key in keys:
            notebook.page.keyboard.press(key)

    type_into(0, "abc")
    notebook.page.locator("[role=status]", has_text="was given and is locked").wait_for(state="attached")
    toasts.nth(0).wait_for()
    type_into(1, "abc")
    notebook.page.locator("[role=status]", has_text="it checks your answer").wait_for(state="attached")
    toasts.nth(1).wait_for()
    type_into(2, "abc")
    notebook.page.wait_for_function("window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel"
                                    ".getSource().includes('abc')")
    assert toasts.count() == 2
