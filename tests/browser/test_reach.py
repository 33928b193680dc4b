"""Who uses the keyboard leaves a widget as any output of JupyterLab."""

import pytest

from tests.browser.widget import Widget

pytestmark = [pytest.mark.browser, pytest.mark.ci]

CELLS = ("from course_lib.widgets import PipelineSchedule, RingAllReduce, predict",
         "schedule = PipelineSchedule()\nschedule", "ring = RingAllReduce()\nring",
         "guess = predict('How many?')\nguess", "'the end'")
FOCUSED = """() => {
    const cell = document.activeElement.closest(".jp-Cell");
    return [Number(cell?.dataset.windowedListIndex ?? -1), document.activeElement === cell];
}"""


@pytest.fixture
def opened(run_cells):
    notebook = run_cells(*CELLS)
    return notebook, Widget(notebook, 0), Widget(notebook, 1)


def active(notebook):
    return notebook.page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex")


def counts(notebook):
    """How often the kernel has been asked, by cell."""
    return notebook.page.evaluate(
        "window.jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.executionCount)")


def wait_for_rerun(notebook, place, before):
    count = "window.jupyterapp.shell.currentWidget.content.widgets[place].model.executionCount"
    notebook.page.wait_for_function(f"([place, before]) => {count} > before", arg=[place, before])


def test_escape_in_any_control_gives_the_focus_to_the_cell_whose_keys_then_work(opened):
    notebook, schedule, ring = opened
    page = notebook.page
    for widget, place, name in ((schedule, 1, "micro-batches"), (schedule, 1, "schedule"), (ring, 2, "Play"),
                                (ring, 2, "step")):
        widget.control(name).focus()
        page.keyboard.press("Escape")
        assert page.evaluate(FOCUSED) == [place, True] and active(notebook) == place, name
        page.keyboard.press("ArrowDown")
        page.wait_for_function("(next) => window.jupyterapp.shell.currentWidget.content.activeCellIndex === next",
                               arg=place + 1)
    guess = notebook.cell(3).get_by_label("How many?", exact=True)
    guess.focus()
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == [3, True]
    page.keyboard.press("Enter")  # into the cell's editor
    page.wait_for_function("document.activeElement.closest('.jp-Notebook-cell .cm-editor')")
    assert notebook.console_errors == []


def test_escape_leaves_the_lanes_that_take_the_keyboard(opened):
    notebook, schedule, _ = opened
    schedule.press("schedule", "End")
    lanes = schedule.root.locator(".picture[role=application]")
    lanes.focus()
    notebook.page.keyboard.press("Escape")
    assert notebook.page.evaluate(FOCUSED) == [1, True]


def test_shift_enter_in_a_control_runs_the_cell_and_goes_on_to_the_next(opened):
    notebook, schedule, ring = opened
    for widget, place, name in ((ring, 2, "step"), (ring, 2, "Play"), (schedule, 1, "schedule")):
        before = counts(notebook)
        widget.control(name).focus()
        notebook.page.keyboard.press("Shift+Enter")
        wait_for_rerun(notebook, place, before[place])
        after = counts(notebook)
        assert [new != old for new, old in zip(after, before)] == [each == place for each in range(len(CELLS))], name
        assert active(notebook) == place + 1, name
        assert ring.root.get_by_label("Play", exact=True).count() == 1  # and nothing began to play
    assert notebook.console_errors == []


def test_escape_closes_an_open_drop_down_and_stays_there(opened):
    notebook, schedule, _ = opened
    page = notebook.page
    select = schedule.control("schedule")
    select.focus()
    page.keyboard.press("Alt+ArrowDown")
    is_open = "(node) => node.matches(':open')"
    page.wait_for_function(is_open, arg=select.element_handle())
    page.keyboard.press("Escape")
    page.wait_for_function("(node) => !node.matches(':open')", arg=select.element_handle())
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == [1, True]
