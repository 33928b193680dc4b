"""Notebooks are executed once, with what each cell cost and what became of its headlines; the comparison is strict."""

import asyncio
import copy
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.executed import difference_of, not_executed
from tools import cells, run_notebooks
from tools.run_notebooks import digest, execute, failure, summary

ROOT = Path(__file__).resolve().parents[1]
BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint('ready', flush=True)\ninput()"
CELLS = (
    "import os\nimport subprocess\nimport sys\nfrom course_lib.widgets import Chart",
    f"child = subprocess.Popen([sys.executable, '-c', {BURN!r}], stdin=-1, stdout=-1)\nchild.stdout.readline()",
    f"subprocess.run([sys.executable, '-c', {BURN!r}], input=b'x', capture_output=True).returncode",
    "losses = [3.0, 2.0]\nChart('Losses fall', 'year', 'loss', points={'loss': ([1, 2], losses)}, "
    "holds=losses[1] < losses[0])",
    "1 / 0",
    "from ipykernel import get_connection_info\nprint(os.environ['COURSE_TEXT'])\nprint(get_connection_info())",
    "os.kill(child.pid, 9)\nos.kill(os.getpid(), 9)",
    "print('never')",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> nbformat.NotebookNode:
    """A notebook in which a cell fails, and whose kernel dies."""
    path = tmp_path_factory.mktemp("executed") / "a.ipynb"
    nbformat.write(new_notebook(cells=list(map(new_code_cell, CELLS))), path)
    (path.parent / "text.txt").write_text("Words.")
    return asyncio.run(execute(path, path.parent / "text.txt"))


def test_a_cells_cpu_seconds_are_those_of_its_processes_too_whether_they_live_or_have_ended(executed):
    lives, ended = (cell.metadata.executed.cpu_s for cell in executed.cells[1:3])
    assert lives >= 0.4 and ended >= 0.4 and executed.metadata.executed.cpu_s >= lives + ended


def test_headlines_are_contradicted_in_the_kernel_and_cells_after_a_failure_run_on_the_text_until_it_dies(executed):
    (found,) = executed.cells[3].metadata.executed.headlines
    assert found.contradicted == "Chart: not seen here: Losses fall (loss over year: loss)" and not found.fault
    assert "ZeroDivisionError" in failure(executed.cells[4]) and not failure(executed.cells[5])
    assert executed.cells[5].outputs[0].text.splitlines()[0].endswith("text.txt")
    assert "executed" not in executed.cells[7].metadata
    assert executed.metadata.executed.died and "FAILED: cells [4]; Kernel died" in summary(executed)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sockets that are files")
def test_a_kernel_is_reached_through_files_so_that_no_rank_takes_its_ports_and_leaves_none(executed):
    place = json.loads(executed.cells[5].outputs[0].text.partition("\n")[2])
    assert place["transport"] == "ipc" and not Path(place["ip"]).parent.exists()


def cell(text: str, source: str = "f()", **metadata) -> nbformat.NotebookNode:
    made = new_code_cell(source, execution_count=1, metadata={"executed": {"headlines": []}, **metadata})
    made.outputs = [new_output("execute_result", {"text/plain": text, "image/png": "AAAA"}, execution_count=7)]
    return made


def test_one_other_number_differs_and_a_measured_time_does_not():
    assert difference_of("00[1]", cell("6 ranks, took 1 s"), cell("6 ranks, took 2 s"), False) == ""
    words = difference_of("00[1]", cell("6 ranks\nfast"), cell("7 ranks\nfast"), False)
    assert words.startswith("f()") and "-6 ranks\n+7 ranks" in words
    more = cell("6 ranks")
    more.outputs += [new_output("stream", name="stdout", text="more")]
    assert "stdout" in difference_of("00[1]", cell("6 ranks"), more, False)


def test_a_cell_that_fails_gives_its_traceback_unless_it_fails_as_stored():
    failed = cell("")
    failed.outputs = [new_output("error", ename="E", evalue="no", traceback=["line 3", "E: no"])]
    assert "line 3\nE: no" in difference_of("00[1]", cell(""), failed, False)
    meant = copy.deepcopy(failed)
    meant.metadata.tags = ["raises-exception"]
    assert difference_of("00[1]", meant, meant, False) == "" != difference_of("00[1]", meant, cell(""), False)
    del failed.metadata["executed"]
    assert difference_of("00[1]", cell(""), failed, False) == "did not run: the kernel had ended"


@pytest.mark.parametrize("label, stored, now, judged", [
    (sorted(cells.ABOUT_TIMES)[0], "Chart: it is fast", "Chart: not seen here: it is fast", False),
    (sorted(cells.ABOUT_TIMES)[0], "Chart: it is fast", "Chart: not seen here: it is slow", True),
    ("06[18]", "Chart: it took 3 ms", "Chart: not seen here: it took 4 ms", False),
    ("06[18]", "Chart: it is fast", "Chart: not seen here: it is fast", True),
])
@pytest.mark.filterwarnings("ignore:.*not judged")
def test_only_a_headline_about_a_time_may_give_way_and_only_side_by_side(label, stored, now, judged):
    assert difference_of(label, cell(stored), cell(now), False)
    assert bool(difference_of(label, cell(stored), cell(now), True)) == judged


def test_what_was_executed_before_an_edit_counts_as_not_executed(monkeypatch):
    stored = new_notebook(cells=[cell("1")])
    now = copy.deepcopy(stored)
    now.metadata.executed = nbformat.from_dict({"digest": digest(), "died": ""})
    assert not_executed(stored, now, "how") == ""
    assert not_executed(stored, None, "how") == "not executed as it is here: how"
    monkeypatch.setattr(run_notebooks, "digest", lambda: "another course_lib")
    assert "before course_lib became" in not_executed(stored, now, "how")
    stored.cells[0].source = "g()"
    assert not_executed(stored, now, "how") == "not executed as it is here: how"


def test_pytest_has_an_item_for_each_cell_and_for_its_headlines_and_one_for_the_execution(tmp_path):
    said = {"fault": "says the same over 9 other data", "source": "Chart(", "said": "Chart: a", "contradicted": ""}
    stored = new_notebook(cells=[cell("6"), cell("6"), cell("Chart: a")])
    now = copy.deepcopy(stored)
    now.metadata.executed = nbformat.from_dict({"digest": "another", "died": "", "beside": 1})
    now.cells[1].outputs[0].data["text/plain"] = "7"
    now.cells[2].metadata.executed.headlines = [said]
    for name, notebook in (("00_a", stored), ("01_b", stored), ("executed/00_a", now)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.executed",
               "-rA", f"--executed={tmp_path / 'executed'}", *map(str, sorted(tmp_path.glob("*.ipynb")))]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    told = {line.split(" - ")[0].partition("::")[::2] for line in lines if line.startswith(("PASSED", "FAILED"))}
    assert {(words.split()[0], name) for words, name in told} == {
        ("FAILED", "executed"), ("PASSED", "Cell 0"), ("FAILED", "Cell 1"), ("PASSED", "Cell 2"),
        ("FAILED", "Cell 2, contradicted")}
