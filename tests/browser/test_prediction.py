"""A reader predicts by mouse and by keyboard in a real JupyterLab, goes on with the next cell, and loses no answer."""

import pytest

from tests.browser.widget import TWO_IDS

pytestmark = [pytest.mark.browser, pytest.mark.ci]

IMPORTS = "from course_lib.widgets import predict"
NUMBER = "sent = predict('How many bytes does each rank send?', unit='bytes')\nsent"
VERDICT = "sent.against(12_000_000)"
SECOND = "second = predict('Which is second?', options=['ring', 'tree'])\nsecond"
CHOICE = "faster = predict('Which is faster?', options=['ring', 'tree'])\nfaster"
CELLS = (IMPORTS, NUMBER, VERDICT, CHOICE, SECOND)
FORGET = "from course_lib.widgets import prediction; prediction._asked.clear()"


@pytest.fixture
def asked(run_cells):
    """The notebook of CELLS, where nothing is locked yet."""
    run_cells(*CELLS).ask(FORGET)
    return run_cells(*CELLS)


def active_cell(notebook):
    return notebook.page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex")


def execution_count(notebook, index):
    return notebook.page.evaluate(
        "(index) => window.jupyterapp.shell.currentWidget.content.widgets[index].model.executionCount", index)


def run_active_cell_by(notebook, act):
    """Do what runs the active cell, and wait until it has run."""
    index = active_cell(notebook)
    before = execution_count(notebook, index)
    act()
    notebook.page.wait_for_function(
        "([index, before]) => ![null, before].includes("
        "window.jupyterapp.shell.currentWidget.content.widgets[index].model.executionCount)", arg=[index, before])
    return index


def test_by_keyboard_a_number_is_typed_locked_and_the_next_cell_is_one_key_away(asked):
    root = asked.cell(1).locator(".explorable")
    field = root.get_by_label("How many bytes does each rank send?", exact=True)
    field.focus()
    asked.page.keyboard.type("40 MiB")  # "m" and "b" are shortcuts of JupyterLab elsewhere
    asked.page.keyboard.press("Enter")
    root.get_by_text("Locked: 40 MiB, read as 41,943,040 bytes").wait_for()
    assert active_cell(asked) == 2 and not field.is_editable()
    assert run_active_cell_by(asked, lambda: asked.page.keyboard.press("Shift+Enter")) == 2
    verdict = asked.stored().cells[2].outputs[0].data["text/plain"]
    assert "you said 41.9 MB, and it is 12.0 MB: 3.5 times too much (you 41,943,040 bytes" in verdict
    assert active_cell(asked) == 3 and asked.console_errors == []


def test_by_mouse_after_lock_shift_enter_runs_the_next_cell(asked):
    root = asked.cell(1).locator(".explorable")
    root.get_by_label("How many bytes does each rank send?", exact=True).click()
    asked.page.keyboard.type("12 MB")
    root.get_by_role("button", name="Lock the prediction").click()
    root.get_by_text("Locked: 12 MB").wait_for()
    assert active_cell(asked) == 2
    assert run_active_cell_by(asked, lambda: asked.page.keyboard.press("Shift+Enter")) == 2
    assert "exactly right" in asked.stored().cells[2].outputs[0].data["text/plain"]


def test_running_the_question_again_by_the_toolbar_or_all_cells_keeps_what_was_locked(asked):
    option = asked.cell(3).locator(".explorable")
    option.get_by_label("tree", exact=True).click()
    option.get_by_role("button", name="Lock the prediction").click()
    option.get_by_text("Locked: tree").wait_for()
    asked.cell(3).locator(".jp-InputPrompt").click()
    run_active_cell_by(asked, asked.page.get_by_role("button", name="Run this cell and advance").click)
    option.get_by_text("Locked: tree").wait_for()
    asked.run_all()
    option.get_by_text("Locked: tree").wait_for()
    second = asked.cell(4).locator(".explorable")  # of whose options the locked ones know nothing
    second.get_by_label("ring", exact=True).check()
    second.get_by_role("button", name="Lock the prediction").click()
    second.get_by_text("Locked: ring").wait_for()
    assert option.get_by_label("tree", exact=True).is_checked() and asked.ask("print(faster.answer)").strip() == "tree"
    assert asked.page.evaluate(TWO_IDS) == []


def test_predict_anew_forgets_the_answer_and_takes_another(asked):
    root = asked.cell(3).locator(".explorable")
    assert not root.get_by_role("button", name="Predict anew").is_visible()
    root.get_by_role("button", name="Lock the prediction").click()
    root.get_by_text("Pick one first.").wait_for()
    root.get_by_label("ring", exact=True).focus()
    asked.page.keyboard.press("Space")
    asked.page.keyboard.press("ArrowDown")
    asked.page.keyboard.press("Enter")
    root.get_by_text("Locked: tree").wait_for()
    root.get_by_role("button", name="Predict anew").press("Enter")
    root.get_by_role("button", name="Predict anew").wait_for(state="hidden")
    assert asked.ask("print(faster.answer)").strip() == "None"
    root.get_by_label("ring", exact=True).check()
    root.get_by_role("button", name="Lock the prediction").press("Enter")
    root.get_by_text("Locked: ring").wait_for()
    assert asked.ask("print(faster.answer)").strip() == "ring" and asked.console_errors == []


@pytest.mark.parametrize(("typed", "why"), [
    ("about a megabyte", "expected a number of bytes, alone or with B, kB, MB, GB, TB, KiB, MiB, GiB, TiB behind it"),
    ("1,3 MB", "a decimal part has a point, as in 1.3")])
def test_what_is_no_number_is_refused_with_a_sentence_and_can_be_mended(asked, typed, why):
    root = asked.cell(1).locator(".explorable")
    field = root.get_by_label("How many bytes does each rank send?", exact=True)
    field.fill(typed)
    field.press("Enter")
    root.get_by_text(why).wait_for()
    assert active_cell(asked) != 2 and field.is_editable() and asked.ask("print(sent.answer)").strip() == "None"
