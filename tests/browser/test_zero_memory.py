"""ZeroMemory in a real JupyterLab, by keyboard alone."""

import pytest

from tests.browser.widget import Widget

pytestmark = pytest.mark.browser

CELLS = ("from course_lib.widgets import ZeroMemory", 'zero = ZeroMemory("Llama 3 70B", num_devices=32, stage=2)\nzero')
MIXED = "bf16 over fp32 master, Adam"


@pytest.fixture
def open_zero(run_cells):
    return lambda: Widget(run_cells(*CELLS), 0)


@pytest.mark.sweep(words="one widget's own controls; test_every_widget.py has a key for each control")
def test_model_devices_stage_and_recipe_are_chosen_by_keyboard_and_the_gpus_follow(open_zero):
    zero = open_zero()
    zero.wait_for(f"Llama 3 70B n=32 stage=2 {MIXED}")
    assert zero.headline() == "172 GB on each device; MI300X has room for it"
    assert sum(text.startswith("✗ at no number") for text in zero.texts()) == 7
    zero.press("devices", "ArrowRight")
    zero.wait_for(f"Llama 3 70B n=64 stage=2 {MIXED}")
    assert zero.headline() == "157 GB on each device; B200 has room for it"
    assert "✓ from 48 devices on" in zero.texts()
    for control, typed, key in (("stage", "ZeRO-3", f"Llama 3 70B n=64 stage=3 {MIXED}"),
                                ("model", "GPT-3", f"GPT-3 n=64 stage=3 {MIXED}"),
                                ("recipe", f"{MIXED} on", f"GPT-3 n=64 stage=3 {MIXED} on the host")):
        zero.control(control).focus()
        zero.page.keyboard.type(typed)
        zero.wait_for(key)
    assert zero.headline() == "nothing stays on the device between the layers"
    assert "its host holds" in zero.texts()
    assert zero.notebook.console_errors == []


def test_python_and_the_browser_set_the_same_parameters(open_zero):
    zero = open_zero()
    zero.notebook.ask("zero.num_devices, zero.stage = 24, 1")
    zero.wait_for(f"Llama 3 70B n=24 stage=1 {MIXED}")
    assert zero.control("devices").get_attribute("aria-valuetext") == "24"  # not a power of two: it joins the slider's
    zero.press("devices", "ArrowRight")
    zero.wait_for(f"Llama 3 70B n=32 stage=1 {MIXED}")
    assert zero.notebook.ask("print(zero.stage, zero.num_devices)") == "1 32\n"
    assert zero.notebook.console_errors == []
