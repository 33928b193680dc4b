"""Widgets in a real JupyterLab: what the browser sets the kernel knows, and the other way around.

What they draw, and every other widget: test_every_widget.py, without JupyterLab.
"""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import photograph
from tests.browser.widget import Widget
from tools.harness.browser import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.ci]

CELLS = ("from course_lib.widgets import RingAllReduce, TeamView, ZeroMemory",
         "zero = ZeroMemory('Llama 3 70B', 32)\nzero", "ring = RingAllReduce(num_ranks=4, step=0)\nring",
         "import torch\nimport torch.distributed as dist\nfrom course_lib.runtime import start_ranks\n"
         "team = start_ranks(world_size=4)",
         "%%ranks\nx = torch.arange(32.0).view(4, 8) * dist.get_rank()\nx.sum().item()", 'TeamView.of(team, "x")',
         "from IPython.display import Javascript\nJavascript('console.error(\"made up\")')")
MIXED = "bf16 over fp32 master, Adam"
# Counts, from now on, what goes to the kernel for widgets and comes from it.
COUNT = """() => {
    window.counts = { sent: 0, received: 0 };
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.anyMessage.connect((_, { msg, direction }) => {
        if (msg.header.msg_type !== "comm_msg" || msg.content.data.method === "echo_update") return;
        window.counts[direction === "send" ? "sent" : "received"] += 1;
    });
}"""


def test_kernel_and_browser_set_the_same_parameters_with_one_message_each_and_a_view_follows_its_team(run_cells):
    notebook = run_cells(*CELLS)
    zero, ring, view = (Widget(notebook, number) for number in (0, 1, 4))
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

    assert view.headline() == "In x 31 of 32 elements differ between ranks"  # the first one is 0 everywhere
    for theme in THEMES:
        notebook.change_theme(theme)
        photograph(view.root, f"team_view_{theme}")
    headline, same = view.root.locator(".headline"), "In x all 32 elements are the same in all ranks"
    notebook.ask('get_ipython().run_cell_magic("ranks", "", "dist.all_reduce(x)")')
    expect(headline).to_have_text(same)
    notebook.ask("team.close()")
    assert headline.inner_text() == same, "a closed team's stays"
    (error,) = notebook.console_errors  # what a page reports as an error is noticed
    assert "made up" in error
