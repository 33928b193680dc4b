"""A reader looks into a rank in a real JupyterLab: steps through it at the cell's input line, and sees its picture."""

import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools.notebooks import METADATA

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


def test_a_reader_steps_through_a_rank_prints_a_shape_and_goes_on(tmp_path, open_notebook):
    path = tmp_path / "ranks.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(text) for text in (READERS, STEPPED, SHOWN)], metadata=METADATA),
                   path)
    notebook = open_notebook(path)
    page = notebook.page
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    stop = [("n", "x = x / 2")] if sys.version_info >= (3, 13) else []  # there breakpoint() stops at its own line
    for command, answer in (*stop, ("n", "dist.all_reduce(x)"), ("x.shape", "torch.Size([3, 2])"), ("c", "[3.0, 3.0]")):
        field = page.locator(".jp-Stdin-input:not([readonly])").last
        field.wait_for()
        assert "[rank 1] (Pdb)" in page.locator(".jp-Stdin-prompt").last.inner_text()
        field.fill(command)
        if command == "c":
            page.screenshot(path="build/screenshots/breakpoint.png")
        asked = field.element_handle()
        field.press("Enter")
        page.wait_for_function("field => field.readOnly || !field.isConnected", arg=asked)  # the next one is another
        page.locator(".jp-OutputArea-output", has_text=answer).last.wait_for()
    page.locator(".jp-OutputArea-output img").nth(1).wait_for()
    printed = page.locator(".jp-OutputArea").all_inner_texts()
    assert "[rank 1] shows:" in printed[-1] and "Figure(" not in printed[-1]
    assert "In[2](9)halves()" in printed[-2] and "ipykernel" not in printed[-2]
    assert notebook.console_errors == []
