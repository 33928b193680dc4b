"""FitsOrNot in a real JupyterLab, by keyboard alone."""

import pytest

from tests.browser.widget import Widget

pytestmark = pytest.mark.browser

CELLS = ("from course_lib.widgets import FitsOrNot",
         'fits = FitsOrNot("Llama 3 8B", "H100", num_devices=8, precision="mixed")\nfits')


@pytest.fixture
def open_fits(run_cells):
    return lambda: Widget(run_cells(*CELLS), 0)


@pytest.mark.sweep(words="one widget's own controls; test_every_widget.py has a key for each control")
def test_model_device_devices_and_precision_are_chosen_by_keyboard_and_the_verdict_follows(open_fits):
    fits = open_fits()
    fits.wait_for("Llama 3 8B H100 n=8 mixed")
    assert fits.headline() == "Llama 3 8B fits from ZeRO-3 on: 64.4 GB of 80 GB on each device"
    fits.photograph("fits_or_not")
    fits.press("devices", "ArrowRight")
    fits.wait_for("Llama 3 8B H100 n=16 mixed")
    assert fits.control("devices").get_attribute("aria-valuetext") == "16"
    fits.press("devices", "Home")
    fits.wait_for("Llama 3 8B H100 n=1 mixed")
    assert "does not fit, even with ZeRO-3" in fits.headline()
    assert sum(text.startswith("✗") for text in fits.texts()) == 4
    for control, typed, key in (("model", "GPT-3", "GPT-3 H100 n=1 mixed"), ("device", "B2", "GPT-3 B200 n=1 mixed"),
                                ("precision", "pure", "GPT-3 B200 n=1 pure 16-bit")):
        fits.control(control).focus()
        fits.page.keyboard.type(typed)
        fits.wait_for(key)
    fits.photograph("fits_or_not_gpt3")
    assert fits.notebook.console_errors == []


def test_python_and_the_browser_set_the_same_parameters(open_fits):
    fits = open_fits()
    fits.notebook.ask("fits.num_devices, fits.model = 24, 'GPT-3'")
    fits.wait_for("GPT-3 H100 n=24 mixed")
    assert fits.control("devices").get_attribute("aria-valuetext") == "24"  # not a power of two: it joins the slider's
    fits.press("devices", "ArrowRight")
    fits.wait_for("GPT-3 H100 n=32 mixed")
    assert fits.notebook.ask("print(fits.model, fits.num_devices)") == "GPT-3 32\n"
    assert fits.notebook.console_errors == []
