"""A reader's first cells in a real JupyterLab: a server, an error that leads on, a rank stepped through."""

import sys

import pytest

from tests.browser.conftest import photograph, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.ci]

# What tests set, and no reader: there, nobody can type.
READERS = "import os\nfor name in ('PYTEST_CURRENT_TEST', 'COURSE_LIB_STABLE_OUTPUT'):\n    os.environ.pop(name, None)"
STEPPED = """import torch, torch.distributed as dist
from course_lib.runtime import launch

def halves():
    x = torch.ones(3, 2) * dist.get_rank()
    if dist.get_rank() == 1:
        breakpoint()
        x = x / 2
    dist.all_reduce(x)
    return x.sum().item()

launch(halves, world_size=2)"""
SHOWN = """import matplotlib.pyplot as plt

def draw():
    plt.figure(figsize=(4, 1.5))
    plt.bar(range(3), [dist.get_rank() + 1] * 3)
    plt.show()

launch(draw, world_size=2)
None"""


def test_of_the_first_cells_the_server_is_warm_a_bar_is_not_red_and_an_error_leads_to_launch(run_cells):
    notebook = run_cells(
        READERS, "import torch.distributed as dist\nfrom course_lib.grading import check",
        "from course_lib.runtime.ranks.pools import pool\nprint('server runs:', pool()._server.poll() is None)",
        "from course_lib.reference import GPT, GPTConfig, train\n"
        "_ = train(GPT(GPTConfig()), steps=1, batch_size=1, held_out=False)", "dist.get_rank()")
    for cell, words in ((2, "server runs: True"), (3, "training: 100%"),
                        (4, "Put these lines in a function f and call launch(f, world_size=4)")):
        assert words in notebook.cell(cell).inner_text()
    assert notebook.cell(3).locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0


def test_a_reader_steps_through_a_rank_prints_a_shape_goes_on_and_sees_its_picture(tmp_path, open_notebook):
    notebook = open_notebook(write_notebook(tmp_path / "ranks.ipynb", READERS, STEPPED, SHOWN))
    page = notebook.page
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    stop = [("n", "x = x / 2")] if sys.version_info >= (3, 13) else []  # there breakpoint() stops at its own line
    for command, answer in (*stop, ("n", "dist.all_reduce(x)"), ("x.shape", "torch.Size([3, 2])"), ("c", "[3.0, 3.0]")):
        field = page.locator(".jp-Stdin-input:not([readonly])").last
        field.wait_for()
        assert "[rank 1] (Pdb)" in page.locator(".jp-Stdin-prompt").last.inner_text()
        field.fill(command)
        photograph(page, "breakpoint")
        asked = field.element_handle()
        field.press("Enter")
        page.wait_for_function("field => field.readOnly || !field.isConnected", arg=asked)  # the next one is another
        page.locator(".jp-OutputArea-output", has_text=answer).last.wait_for()
    page.locator(".jp-OutputArea-output img").nth(1).wait_for()
    printed = page.locator(".jp-OutputArea").all_inner_texts()
    assert "[rank 1] shows:" in printed[-1] and "Figure(" not in printed[-1]
    assert "In[2](9)halves()" in printed[-2] and "ipykernel" not in printed[-2]
    assert notebook.console_errors == []
