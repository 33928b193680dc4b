"""Two widgets in a real JupyterLab: what the browser sets the kernel knows, and the other way around.

What they draw, and every other widget: test_every_widget.py, without JupyterLab.
"""

import pytest

from tests.browser.widget import Widget

pytestmark = [pytest.mark.browser, pytest.mark.ci]

CELLS = ("from course_lib.widgets import RingAllReduce, ZeroMemory", "zero = ZeroMemory('Llama 3 70B', 32)\nzero",
         "ring = RingAllReduce(num_ranks=4, step=0)\nring")
MIXED = "bf16 over fp32 master, Adam"
# Counts, from now on, what goes to the kernel for widgets and comes from it.
COUNT = """() => {
    window.counts = { sent: 0, received: 0 };
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.anyMessage.connect((_, { msg, direction }) => {
        if (msg.header.msg_type !== "comm_msg" || msg.content.data.method === "echo_update") return;
        window.counts[direction === "send" ? "sent" : "received"] += 1;
    });
}"""


def test_the_kernel_and_the_browser_set_the_same_parameters_with_one_message_each(run_cells):
    notebook = run_cells(*CELLS)
    zero, ring = Widget(notebook, 0), Widget(notebook, 1)
    notebook.ask("zero.num_devices, zero.stage = 24, 1")
    zero.wait_for(f"Llama 3 70B n=24 stage=1 {MIXED}")
    notebook.page.evaluate(COUNT)
    zero.press("devices", "ArrowRight")
    zero.wait_for(f"Llama 3 70B n=32 stage=1 {MIXED}")
    counts = notebook.page.evaluate("window.counts")
    assert counts["sent"] == 1 and counts["received"] <= 1
    assert notebook.ask("print(zero.stage, zero.num_devices)") == "1 32\n"
    notebook.ask("ring.num_ranks, ring.step = 3, 2")
    ring.wait_for("n=3 step=2")
    ring.press("step", "ArrowRight")
    ring.press("ranks", "ArrowRight")
    ring.wait_for("n=4 step=3")
    assert notebook.ask("print(ring.num_ranks, ring.step)") == "4 3\n"
    assert notebook.console_errors == []


def test_what_a_page_reports_as_an_error_is_noticed(run_cells):
    notebook = run_cells("from IPython.display import Javascript\nJavascript('console.error(\"made up\")')")
    assert [text for text in notebook.console_errors if "made up" in text]
