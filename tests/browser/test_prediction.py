"""A reader predicts with the keyboard in a real JupyterLab, and the prediction cannot be changed afterwards."""

import pytest

pytestmark = pytest.mark.browser

IMPORTS = "from course_lib.widgets import predict"
NUMBER = "sent = predict('How many bytes does each rank send?', unit='bytes')\nsent"
CHOICE = "faster = predict('Which is faster?', options=['ring', 'tree'])\nfaster"


def test_a_number_is_typed_and_locked_with_the_keyboard_and_python_knows_it(run_cells):
    notebook = run_cells(IMPORTS, NUMBER, CHOICE)
    root = notebook.cell(1).locator(".explorable")
    field = root.get_by_label("How many bytes does each rank send?", exact=True)
    field.focus()
    notebook.page.keyboard.type("many")
    notebook.page.keyboard.press("Enter")
    root.get_by_text("A number, please").wait_for()
    field.fill("")
    notebook.page.keyboard.type("40 MB")  # "m" and "b" are shortcuts of JupyterLab elsewhere
    notebook.page.keyboard.press("Tab")
    assert notebook.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Lock the prediction"
    notebook.page.keyboard.press("Enter")
    root.get_by_text("Locked: 40 MB").wait_for()
    assert field.is_disabled() and root.get_by_label("Lock the prediction").is_disabled()
    told = notebook.ask("print(sent.answer, sent.against(12_000_000).verdict())").strip()
    assert told == "40000000.0 3.33 times too much"
    assert notebook.console_errors == []


def test_an_option_is_picked_with_the_keyboard(run_cells):
    notebook = run_cells(IMPORTS, NUMBER, CHOICE)
    root = notebook.cell(2).locator(".explorable")
    root.get_by_label("Lock the prediction").click()
    root.get_by_text("Pick one first.").wait_for()
    root.get_by_label("ring", exact=True).focus()
    notebook.page.keyboard.press("Space")
    notebook.page.keyboard.press("ArrowDown")
    root.get_by_label("Lock the prediction").press("Enter")
    root.get_by_text("Locked: tree").wait_for()
    assert notebook.ask("print(faster.answer)").strip() == "tree"
    notebook.page.screenshot(path="build/screenshots/prediction.png")
    assert notebook.console_errors == []
