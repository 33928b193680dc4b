"""Committed notebooks are clean, `make notebooks` keeps them so, and knows which of them a change touches.

That they print what they are stored with says tests/executed.py, for each cell of notebooks/*.ipynb.
"""

import base64
import html
import inspect
import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.collectives.ring import reduce_scatter
from course_lib.grading.registry import exercise
from course_lib.pictures.drawn import NOT_SEEN
from course_lib.show import Difference, Listing, colour_code, show
from tools import minutes, notebooks
from tools.notebooks import LONGEST_CELL, MOST_MINUTES, faults

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = notebooks.NOTEBOOKS
read = cache(lambda path: nbformat.read(path, as_version=4))


def test_committed_notebooks_have_no_fault():
    assert {path.name: faults(read(path)) for path in NOTEBOOKS} == {path.name: [] for path in NOTEBOOKS}


def clean_notebook() -> nbformat.NotebookNode:
    cells = [new_code_cell("import sys", execution_count=1), new_code_cell("sys.maxsize", execution_count=2)]
    return new_notebook(cells=cells)


def shown(**data: str) -> list[nbformat.NotebookNode]:
    return [new_output("display_data", {mime.replace("_", "/"): each for mime, each in data.items()})]


# A fault -> what becomes of the clean notebook's (metadata, first cell, second cell).
SPOILED = {
    "metadata.widgets": lambda metadata, first, second: metadata.update(widgets={}),
    "widget-view output": lambda _, first, second: second.update(
        outputs=[new_output("display_data", {notebooks.WIDGET_MIME + "view+json": {}})]),
    "a picture names what drew it": lambda _, first, second: second.update(
        outputs=shown(image_png=base64.b64encode(b"...tEXtSoftware...").decode())),
    "a headline that its own data contradict": lambda _, first, second: second.update(
        outputs=shown(text_plain="Chart: " + NOT_SEEN + "it falls")),
    "an error output": lambda _, first, second: second.update(
        outputs=[new_output("error", ename="E", evalue="", traceback=[])]),
    "the first code cell holds more": lambda _, first, second: first.update(source="import sys\nprint(sys.path)"),
    "the first code cell holds": lambda _, first, second: first.update(source="%load_ext autoreload\nimport sys"),
    "imports that no cell uses: sys": lambda _, first, second: second.update(source="1 + 1"),
    "not run": lambda _, first, second: second.update(execution_count=None),
    "more than": lambda _, first, second: second.update(source="sys.maxsize\n" * (LONGEST_CELL + 1)),
    "ends in ';'": lambda _, first, second: second.update(source="sys.maxsize;"),
    "opts out": lambda _, first, second: second.metadata.update(tags=["nbval-ignore-output"]),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_each_fault_of_a_notebook_is_found(fault):
    notebook = clean_notebook()
    assert faults(notebook) == []
    SPOILED[fault](notebook.metadata, *notebook.cells)
    (found,) = faults(notebook)
    assert fault in found


def test_a_sitting_that_is_too_long_is_a_fault():
    long = new_markdown_cell("word " * (minutes.PER_MINUTE["words"] * MOST_MINUTES))
    (found,) = faults(new_notebook(cells=[*clean_notebook().cells, long]))
    assert f"more than {MOST_MINUTES}" in found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_says_how_to_go_on_another_day_and_links_what_comes_next_with_its_points(path):
    cells = read(path).cells
    assert "*On another day:*" in cells[0].source and "Run All Above Selected" in cells[0].source
    onward = cells[-1].source.rpartition("**Next:**")[2]
    following = NOTEBOOKS[NOTEBOOKS.index(path) + 1:][:1]
    assert all(f"({other.name})" in onward for other in following)
    exercises = ROOT / "exercises" / path.stem / path.name
    assert f"(../exercises/{path.stem}/{path.name})" in onward or not exercises.exists()
    rows = re.findall(r"^\| (\d+\.\d) \|.*\| (\d+) \|$", cells[-1].source, re.MULTILINE)
    assert [(number, exercise(number).points) for number, _ in rows] == [(number, int(says)) for number, says in rows]


def test_a_widget_counts_however_a_cell_calls_it():
    outputs = shown(text_plain="RingAllReduce, 4 ranks", image_png="...")
    assert minutes.count_code(new_code_cell("anything", outputs=outputs)) == {
        "lines": 1, "widgets": 1, "pictures": 1, "predictions": 0}


def made_up_notebook() -> nbformat.NotebookNode:
    """Every kind of output that make notebooks has to keep stable, as an author would leave it."""
    widget = {notebooks.WIDGET_MIME + "view+json": {"model_id": "1"}, "text/plain": "ring of 4"}
    cells = [
        new_markdown_cell("# A made-up chapter"),
        new_code_cell("import sys\nimport time\n\nfrom matplotlib import pyplot as plt"),
        new_code_cell("print('6 ranks')\nprint('on stderr', file=sys.stderr)"),
        new_code_cell(f"print(sys.prefix == {sys.prefix!r})"),
        new_code_cell("print(f'took {time.perf_counter():.6f} s')"),
        new_code_cell("object()"),
        new_code_cell("fig, ax = plt.subplots(figsize=(1, 1))\n_ = ax.plot([1, 2])"),
        new_code_cell(f"from IPython.display import display\ndisplay({widget!r}, raw=True)"),
        new_code_cell("1 / 0", metadata={"tags": ["raises-exception"], "collapsed": False}),
        new_code_cell(""),
    ]
    metadata = {"widgets": {}, "language_info": {"name": "python", "version": "3.11.7"}}
    return new_notebook(cells=cells, metadata=metadata)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """The made-up notebook after one `make notebooks`, where the user has another kernel called python3."""
    folder = tmp_path_factory.mktemp("notebooks")
    decoy = folder / "kernels" / "python3" / "kernel.json"
    decoy.parent.mkdir(parents=True)
    decoy.write_text(json.dumps({"argv": ["no-such-kernel"], "display_name": "decoy", "language": "python"}))
    path = folder / "good.ipynb"
    nbformat.write(made_up_notebook(), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(folder))
        notebooks.run(path)
    return path


def test_make_notebooks_stores_what_may_be_committed_and_twice_the_same_bytes(stored, tmp_path):
    notebook = nbformat.read(stored, as_version=4)
    nbformat.validate(notebook)
    assert faults(notebook) == []
    assert notebook.cells[3].outputs[0].text == "True\n"  # the environment's own kernel, not the decoy
    assert "version" not in notebook.metadata.language_info
    again = tmp_path / "again.ipynb"
    again.write_bytes(stored.read_bytes())
    notebooks.run(again)
    assert again.read_bytes() == stored.read_bytes()


def test_stored_tracebacks_name_no_place_on_the_authors_machine():
    library, cell = f"{sys.prefix}/lib/a.py:1", "/tmp/ipykernel_12/34.py:5"
    traceback = f"File {ROOT}/course_lib/runtime/launch.py:3, {library}, {cell}, <f at 0x7f21aa0c1b80>"
    expected = "File course_lib/runtime/launch.py:3, .venv/lib/a.py:1, <cell>:5, <f at 0x0>"
    assert notebooks.without_local_text(traceback) == expected


@pytest.mark.parametrize("printed, refused, stands", [
    ([0], "it does not run\nE: no", 1), ([2, 3], "(?s)two runs differ.*f\\(\\).*2 ranks, took TIME", 1),
    ([2, 2], "", 2), ([1], "", 1)])
def test_what_fails_or_prints_two_things_is_not_stored_and_what_is_stored_already_runs_once(
        tmp_path, monkeypatch, printed, refused, stands):
    def ran(number: int) -> nbformat.NotebookNode:
        outputs = [new_output("stream", name="stdout", text=f"{number} ranks, took {number} s")] if number else [
            new_output("error", ename="E", evalue="no", traceback=["E: no"])]
        notebook = new_notebook(cells=[new_code_cell("f()", outputs=outputs, execution_count=1)])
        notebook.metadata.executed = nbformat.from_dict({"died": "", "cpu_s": 0, "s": 0})
        return notebook

    async def next_run(path: Path) -> nbformat.NotebookNode:
        return runs.pop(0)

    monkeypatch.setattr(notebooks, "execute", next_run)
    path, runs = tmp_path / "a.ipynb", list(map(ran, printed))
    nbformat.write(ran(1), path)
    before = path.read_bytes()
    with pytest.raises(SystemExit, match=refused) if refused else nullcontext():
        notebooks.run(path)
    assert runs == [] and f"{stands} ranks" in path.read_text(encoding="utf-8")
    assert not refused or path.read_bytes() == before


@pytest.mark.parametrize(("text", "picture", "kept"), [
    ("it took 3 ms", "", True), ("it took 3 ms", "one", True), ("it took 3 ms", "another", False),
    ("it sent 3 bytes", "one", False)])
def test_a_measured_time_stays_as_stored_unless_its_picture_is_new(text, picture, kept):
    stored, now = (new_notebook(cells=[new_code_cell("f()", outputs=shown(text_plain=said, image_png=drawn))])
                   for said, drawn in (("it took 8 ms", picture and "one"), (text, picture)))
    notebooks.keep_equal_outputs(now, stored)
    assert now.cells[0].outputs[0].data["text/plain"] == ("it took 8 ms" if kept else text)


def test_a_changed_source_names_the_notebooks_that_show_it(tmp_path, monkeypatch, capsys):
    listing = repr(Listing("course_lib/zero/a.py, course_lib/zero/b.py", "def f(): ..."))
    shown = new_code_cell("show(f)", outputs=[new_output("execute_result", {"text/plain": listing})])
    (tmp_path / "notebooks").mkdir()
    difference = repr(Difference("course_lib/zero/a.py, course_lib/zero/b.py: f -> g", ("+ def g(): ...",)))
    differs = new_code_cell("show_diff(f, g)", outputs=[
        new_output("execute_result", {"text/plain": difference})])
    for name, cells in {"01_a": [new_markdown_cell("# course_lib/zero/b.py")], "02_b": [shown], "03_c": [],
                        "04_d": [differs]}.items():
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    notebooks.main(["showing", "course_lib/zero/b.py"])
    assert capsys.readouterr().out.split() == [str(Path("notebooks", name)) for name in ("02_b.ipynb", "04_d.ipynb")]


def test_make_test_runs_the_first_notebook_and_two_that_a_change_touches(monkeypatch, capsys):
    touched = [f"notebooks/{name}.ipynb" for name in ("00_start_here", "03_c", "02_b", "04_d")]
    monkeypatch.setattr(notebooks, "touched", lambda: touched)
    notebooks.main(["touched"])
    told = capsys.readouterr()
    assert told.out.split() == touched[:3]
    assert told.err == "touched too, and left for .ci/run: notebooks/04_d.ipynb\n"


@pytest.mark.ci
@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_a_notebook_goes_through_its_text_and_back_with_outputs(stored, tmp_path):
    def make(target: str) -> int:
        return subprocess.run(["make", "-s", "-o", f"{sys.prefix}/.ready", f"VENV={sys.prefix}", target, f"NB={path}"],
                              cwd=ROOT).returncode

    lines = ["#!/bin/bash\n#SBATCH --nodes=2\n#\n# a word", "%%bash\nls", "%%ranks 0,2\nx", "!ls", "# %load_ext x"]
    notebook, path = nbformat.read(stored, as_version=4), tmp_path / "good.ipynb"
    notebook.cells += [*map(new_code_cell, lines), *(new_markdown_cell(f"```bash\n{each}\n```") for each in lines)]
    nbformat.write(notebook, path)
    notebooks.tidy(path)
    before = path.read_bytes()
    assert make("text") == 0 == make("write-back") and path.read_bytes() == before

    assert make("text") == 0 != make("text")  # an edited text would be lost
    text = ROOT / "build" / "text" / path.with_suffix(".py").as_posix().replace("/", "_")
    text.write_text(text.read_text(encoding="utf-8").replace("6 ranks", "8 ranks"), encoding="utf-8")
    assert make("write-back") == 0 and not text.exists()
    edited = nbformat.read(path, as_version=4)
    assert "8 ranks" in edited.cells[2].source and edited.cells[3].outputs


# ---- what a notebook shows of a module is the module

def test_the_live_source_is_shown_with_its_file_and_not_a_character_is_lost_in_html():
    listing = show(reduce_scatter)
    assert listing.heading == "course_lib/collectives/ring.py"
    assert listing.code == inspect.getsource(reduce_scatter).rstrip()
    as_text = html.unescape(re.sub(r"<[^>]*>", "", listing._repr_html_()))  # what a browser would show
    assert as_text == listing.heading + listing.code
    assert "&lt;" in colour_code("a < b") and "<b" not in colour_code("a <b")


@pytest.mark.parametrize("thing", [len, 3, "text", None])
def test_what_has_no_source_is_refused_by_name(thing):
    with pytest.raises(TypeError, match="expected a function, class or module written in Python"):
        show(thing)
