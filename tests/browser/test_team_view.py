"""TeamView beside cells of %%ranks in a real JupyterLab: it follows the team, in both themes."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.widget import Widget
from tools.harness.browser import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.ci]

CELLS = (
    "import torch\nimport torch.distributed as dist\nfrom course_lib.runtime import start_ranks\n"
    "from course_lib.widgets import TeamView",
    "team = start_ranks(world_size=4)",
    "%%ranks\nx = torch.arange(32.0).view(4, 8) * dist.get_rank()\nx.sum().item()",
    'TeamView.of(team, "x")',
)
SAME = "In x all 32 elements are the same in all ranks"


def test_a_view_shows_what_differs_between_ranks_and_follows_their_next_cell(run_cells):
    notebook = run_cells(*CELLS)
    widget = Widget(notebook, 2)
    headline = widget.root.locator(".headline")
    assert headline.inner_text() == "In x 31 of 32 elements differ between ranks"  # the first one is 0 everywhere
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        notebook.change_theme(theme)
        notebook.page.wait_for_timeout(1000)  # JupyterLab fades to it
        notebook.page.screenshot(path=SCREENSHOTS / f"team_view_{theme}.png",
                                 clip={"x": 0, "y": 0, "width": 1100, "height": 900})
    notebook.ask('get_ipython().run_cell_magic("ranks", "", "dist.all_reduce(x)")')
    expect(headline).to_have_text(SAME)
    notebook.ask("team.close()")
    assert headline.inner_text() == SAME, "a closed team's stays"
