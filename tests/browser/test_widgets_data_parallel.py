"""The widgets of chapter 3 in a real JupyterLab, by keyboard alone."""

import pytest

from tests.browser.widget import Widget

pytestmark = pytest.mark.browser

CELLS = {"overlap": "overlap = BucketOverlap()\noverlap", "stragglers": "stragglers = Stragglers()\nstragglers"}


@pytest.fixture
def open_widgets(run_cells):
    """Both widgets, new, in a notebook that has been run: {"overlap": Widget, "stragglers": Widget}."""

    def opened(*commands):
        notebook = run_cells("from course_lib.widgets import BucketOverlap, Stragglers", *CELLS.values())
        for command in commands:
            notebook.ask(command)
        return {name: Widget(notebook, number) for number, name in enumerate(CELLS)}

    return opened


@pytest.mark.sweep(words="one widget's own controls; test_every_widget.py has a key for each control")
def test_bucket_size_machine_ranks_and_model_are_set_by_keyboard_and_the_headline_follows(open_widgets):
    overlap = open_widgets()["overlap"]
    overlap.wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=16 | cap=25")
    assert overlap.headline().startswith("71% of the communication is hidden")
    overlap.press("bucket size", "ArrowRight")
    overlap.wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=16 | cap=50")
    assert overlap.control("bucket size").get_attribute("aria-valuetext") == "50 MiB"
    overlap.press("bucket size", "Home")
    overlap.wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=16 | cap=0")
    assert "each alone" in overlap.texts() and "exposed 2.14 ms" in overlap.texts()
    overlap.press("bucket size", "End")
    overlap.wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=16 | cap=10000")
    assert overlap.headline().startswith("0% of the communication is hidden")
    overlap.press("ranks", "End")
    overlap.wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=1024 | cap=10000")
    overlap.control("machine").focus()
    overlap.page.keyboard.type("laptop")
    overlap.wait_for("GPT-2, 124M | laptop, gloo | n=16 | cap=10000")  # as many ranks as fit
    assert overlap.control("ranks").get_attribute("aria-valuetext") == "16"
    assert overlap.crowded() == []
    overlap.control("model").focus()
    overlap.page.keyboard.type("GPT of")
    overlap.wait_for("GPT of this course, 11M | laptop, gloo | n=16 | cap=10000")
    assert overlap.notebook.console_errors == []


def test_schemes_are_compared_by_keyboard_and_local_sgd_is_never_without_a_bound(open_widgets):
    stragglers = open_widgets()["stragglers"]
    stragglers.wait_for("synchronous | always rank 1 | x3 | slack=4")
    assert stragglers.headline().startswith("3.1 of 6.8 possible steps/s per rank")
    assert stragglers.control("slack").is_disabled()
    stragglers.control("scheme").focus()
    stragglers.page.keyboard.type("asyn")
    stragglers.wait_for("asynchronous | always rank 1 | x3 | slack=4")
    assert stragglers.control("slack").get_attribute("aria-valuetext") == "s = 4"
    stragglers.press("slack", "End")
    stragglers.wait_for("asynchronous | always rank 1 | x3 | slack=None")
    assert stragglers.headline().startswith("6.8 of 6.8 possible steps/s per rank: ranks wait 0%")
    stragglers.control("scheme").focus()
    stragglers.page.keyboard.type("local")
    stragglers.wait_for("local | always rank 1 | x3 | slack=32")
    assert stragglers.control("slack").get_attribute("aria-valuetext") == "H = 33"
    stragglers.press("slowdown", "Home")
    stragglers.wait_for("local | always rank 1 | x1 | slack=32")
    assert "waits 0%" in stragglers.texts() and "waits 62%" not in stragglers.texts()
    stragglers.press("slowdown", "End")
    stragglers.wait_for("local | always rank 1 | x10 | slack=32")
    stragglers.control("slow is").focus()
    stragglers.page.keyboard.type("a ran")
    stragglers.wait_for("local | a random rank each step | x10 | slack=32")
    assert stragglers.notebook.console_errors == []


def test_parameters_set_in_python_reach_the_controls(open_widgets):
    widgets = open_widgets("overlap.bucket_cap_mb = 40", "stragglers.scheme, stragglers.slack = 'local', 3")
    widgets["overlap"].wait_for("GPT-2, 124M | A100, 8 in a node, HDR | n=16 | cap=40")
    assert widgets["overlap"].control("bucket size").get_attribute("aria-valuetext") == "40 MiB"
    widgets["stragglers"].wait_for("local | always rank 1 | x3 | slack=3")
    assert widgets["stragglers"].control("slack").get_attribute("aria-valuetext") == "H = 4"
    assert widgets["overlap"].notebook.console_errors == []
