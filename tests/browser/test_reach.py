"""Widgets by keyboard in a real JupyterLab: a reader leaves them as any output, predicts, and loses no answer."""

import pytest

from tests.browser.widget import TWO_IDS, Widget

pytestmark = [pytest.mark.browser, pytest.mark.ci]

NUMBER, CHOICE, SECOND = "How many bytes does each rank send?", "Which is faster?", "Which is second?"
CELLS = ("from course_lib.widgets import PipelineSchedule, RingAllReduce, predict",
         "schedule = PipelineSchedule()\nschedule", "ring = RingAllReduce()\nring",
         f"sent = predict('{NUMBER}', unit='bytes')\nsent", "sent.against(12_000_000)",
         *(f"{name} = predict('{question}', options=['ring', 'tree'])\n{name}"
           for name, question in (("faster", CHOICE), ("second", SECOND))), "'the end'")
FORGET = "from course_lib.widgets import prediction; prediction._asked.clear()"
SHEET = "window.jupyterapp.shell.currentWidget.content"
FOCUSED = """() => {
    const cell = document.activeElement.closest(".jp-Cell");
    return [Number(cell?.dataset.windowedListIndex ?? -1), document.activeElement === cell];
}"""


@pytest.fixture
def notebook(run_cells):
    """The notebook of CELLS, where nothing is locked yet."""
    run_cells(*CELLS).ask(FORGET)
    notebook = run_cells(*CELLS)
    yield notebook
    assert notebook.console_errors == []


def active(notebook):
    return notebook.page.evaluate(f"{SHEET}.activeCellIndex")


def question(notebook, place):
    return notebook.cell(place).locator(".explorable")


def require_runs(notebook, place, act):
    """Doing `act` runs the cell at `place` and no other, and goes on to the next one."""
    def counts():
        return notebook.page.evaluate(f"{SHEET}.widgets.map((cell) => cell.model.executionCount)")

    before = counts()
    act()
    notebook.page.wait_for_function(f"([place, before]) => {SHEET}.widgets[place].model.executionCount > before",
                                    arg=[place, before[place]])
    assert [new != old for new, old in zip(counts(), before)] == [each == place for each in range(len(CELLS))]
    assert active(notebook) == place + 1


def test_escape_gives_the_focus_to_the_cell_whose_keys_then_work_and_shift_enter_runs_it(notebook):
    page, schedule, ring = notebook.page, Widget(notebook, 0), Widget(notebook, 1)
    controls = [(1, schedule.control("micro-batches")), (1, schedule.control("schedule")), (2, ring.control("Play")),
                (2, ring.control("step")), (3, question(notebook, 3).get_by_label(NUMBER, exact=True))]
    for place, control in controls:
        control.focus()
        page.keyboard.press("Escape")
        assert page.evaluate(FOCUSED) == [place, True] and active(notebook) == place, control
        page.keyboard.press("ArrowDown")
        page.wait_for_function(f"(next) => {SHEET}.activeCellIndex === next", arg=place + 1)
    page.keyboard.press("Enter")  # into the cell's editor
    page.wait_for_function("document.activeElement.closest('.jp-Notebook-cell .cm-editor')")
    for place, control in controls[1:4]:
        control.focus()
        require_runs(notebook, place, lambda: page.keyboard.press("Shift+Enter"))
        ring.control("Play").wait_for()  # and nothing began to play
        assert ring.control("Pause").count() == 0

    select = schedule.control("schedule")
    select.focus()
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_function("(node) => node.matches(':open')", arg=select.element_handle())
    page.keyboard.press("Escape")  # closes the list, and stays there
    page.wait_for_function("(node) => !node.matches(':open')", arg=select.element_handle())
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    page.keyboard.press("End")  # by hand
    schedule.root.locator(".picture[role=application]").focus()  # the lanes take the keyboard, too
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == [1, True]


@pytest.mark.parametrize("typed, by, read_as, verdict", [
    # "m" and "b" are shortcuts of JupyterLab elsewhere
    ("40 MiB", "keyboard", ", read as 41,943,040 bytes", "you said 41.9 MB, and it is 12.0 MB: 3.5 times too much (you "
     "41,943,040 bytes"), ("12 MB", "mouse", "", "exactly right")])
def test_a_number_is_typed_locked_and_the_next_cell_is_one_key_away(notebook, typed, by, read_as, verdict):
    root = question(notebook, 3)
    field = root.get_by_label(NUMBER, exact=True)
    field.fill("1,3 MB")
    field.press("Enter")
    root.get_by_text("a decimal part has a point, as in 1.3").wait_for()  # refused, and can be mended
    assert active(notebook) != 4 and field.is_editable() and notebook.ask("print(sent.answer)").strip() == "None"
    field.fill("")
    field.focus()
    notebook.page.keyboard.type(typed)
    if by == "mouse":
        root.get_by_role("button", name="Lock the prediction").click()
    else:
        notebook.page.keyboard.press("Enter")
    root.get_by_text(f"Locked: {typed}{read_as}").wait_for()
    assert active(notebook) == 4 and not field.is_editable()
    require_runs(notebook, 4, lambda: notebook.page.keyboard.press("Shift+Enter"))
    assert verdict in notebook.stored().cells[4].outputs[0].data["text/plain"]


def test_an_option_is_picked_by_keyboard_kept_when_cells_run_again_and_forgotten_by_predict_anew(notebook):
    page, root, second = notebook.page, question(notebook, 5), question(notebook, 6)
    lock, anew = (root.get_by_role("button", name=name) for name in ("Lock the prediction", "Predict anew"))
    assert not anew.is_visible()
    lock.click()
    root.get_by_text("Pick one first.").wait_for()
    root.get_by_label("ring", exact=True).focus()
    for key in ("Space", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    root.get_by_text("Locked: tree").wait_for()
    notebook.cell(5).locator(".jp-InputPrompt").click()
    require_runs(notebook, 5, page.get_by_role("button", name="Run this cell and advance").click)
    root.get_by_text("Locked: tree").wait_for()
    notebook.run_all()
    root.get_by_text("Locked: tree").wait_for()
    second.get_by_label("ring", exact=True).check()  # of whose options the locked ones know nothing
    second.get_by_role("button", name="Lock the prediction").click()
    second.get_by_text("Locked: ring").wait_for()
    assert root.get_by_label("tree", exact=True).is_checked()
    assert page.evaluate(TWO_IDS) == []
    assert notebook.ask("print(faster.answer)").strip() == "tree"
    anew.press("Enter")
    anew.wait_for(state="hidden")
    assert notebook.ask("print(faster.answer)").strip() == "None"
    root.get_by_label("ring", exact=True).check()
    lock.press("Enter")
    root.get_by_text("Locked: ring").wait_for()
    assert notebook.ask("print(faster.answer)").strip() == "ring"
