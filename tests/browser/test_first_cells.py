"""An exercise's first cells in a real JupyterLab: the server is warm, a bar is not red, an error leads to launch."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.ci]

READERS = "import os\nfor name in ('PYTEST_CURRENT_TEST', 'COURSE_LIB_STABLE_OUTPUT'):\n    os.environ.pop(name, None)"
FIRST = "import torch.distributed as dist\nfrom course_lib.grading import check"
WARM = "from course_lib.runtime.ranks.pools import pool\nprint('server runs:', pool()._server.poll() is None)"
BAR = ("from course_lib.reference import GPT, GPTConfig, train\n"
       "_ = train(GPT(GPTConfig()), steps=1, batch_size=1, held_out=False)")


def test_the_first_cells_of_a_reader(run_cells):
    notebook = run_cells(READERS, FIRST, WARM, BAR, "dist.get_rank()")
    assert "server runs: True" in notebook.cell(2).inner_text()
    assert "training: 100%" in notebook.cell(3).inner_text()
    assert notebook.cell(3).locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "Put these lines in a function f and call launch(f, world_size=4)" in notebook.cell(4).inner_text()
