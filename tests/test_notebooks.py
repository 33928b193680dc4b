"""Committed notebooks are clean, `make notebooks` keeps them so, and nbval is as strict as we say.

Every cell of notebooks/*.ipynb is itself a test: pyproject.toml lists that folder and turns nbval on.
"""

import ast
import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.grading.registry import exercise
from course_lib.show import Difference, Listing
from tools import minutes, notebooks
from tools.workspace import is_for_colab

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
LONGEST_CELL = 25  # lines of code that a reader can hold in view
MOST_MINUTES = 90  # of a sitting, by the rule of tools/minutes.py


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """What a notebook may not be committed with, one message a fault."""
    code = code_cells(notebook)
    found = []
    if "widgets" in notebook.metadata:
        found.append("metadata.widgets: GitHub refuses the notebook; run make notebooks")
    if not code or not only_imports(code[0].source):
        found.append("the first code cell holds more than imports")
    for sitting in minutes.read(notebook)[0]:
        if sitting.minutes > MOST_MINUTES:
            found.append(f"a sitting of {sitting.minutes:.0f} minutes, more than {MOST_MINUTES}: shorten it")
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("not run from top to bottom (nbval skips such cells); run make notebooks")
    for cell in code:
        where = f"cell {cell.execution_count}"
        tags = cell.metadata.get("tags", [])
        mimes = [mime for output in cell.outputs for mime in output.get("data", {})]
        if any(mime.startswith(notebooks.WIDGET_MIME) for mime in mimes):
            found.append(f"{where}: widget-view output; run make notebooks")
        if any(b"Software" in png for png in pngs(cell)):
            found.append(f"{where}: a picture names what drew it; save with metadata={{'Software': None}}")
        if cell.source.rstrip().endswith(";"):
            found.append(f"{where}: ends in ';', which hides the value from the reader but not from nbval")
        if "raises-exception" not in tags and any(out.output_type == "error" for out in cell.outputs):
            found.append(f"{where}: an error output, and no tag raises-exception")
        if sum(bool(line.strip()) for line in cell.source.splitlines()) > LONGEST_CELL:
            found.append(f"{where}: more than {LONGEST_CELL} lines of code")
        if any(tag.startswith("nbval-") for tag in tags) or "NBVAL_" in cell.source:
            found.append(f"{where}: opts out of nbval; print something exact instead")
    return found


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Without the one for Colab, which tests/tools/test_one_click.py looks at and nothing here runs."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and not is_for_colab(cell)]


def pngs(cell: nbformat.NotebookNode) -> list[bytes]:
    data = [output.get("data", {}) for output in cell.outputs]
    return [base64.b64decode(each["image/png"]) for each in data if "image/png" in each]


def only_imports(source: str) -> bool:
    """Whether a cell imports and does nothing else; a magic is something else."""
    try:
        return all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.parse(source).body)
    except SyntaxError:
        return False


def unused_imports(notebook: nbformat.NotebookNode) -> list[str]:
    """Names of the first code cell that no other one mentions. ruff does not read cells of %%ranks."""
    first, *others = [cell.source for cell in code_cells(notebook)]
    names = [alias.asname or alias.name.partition(".")[0] for node in ast.parse(first).body for alias in node.names]
    words = set(re.findall(r"\w+", " ".join(others)))
    return [name for name in names if name not in words]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_import_is_used(path):
    assert unused_imports(nbformat.read(path, as_version=4)) == []


def test_an_import_that_only_ranks_use_is_used():
    cells = [new_code_cell("import math\nimport copy"), new_code_cell("%%ranks\nmath.pi")]
    assert unused_imports(new_notebook(cells=cells)) == ["copy"]


def test_committed_notebooks_are_clean():
    found = {path.name: faults(nbformat.read(path, as_version=4)) for path in NOTEBOOKS}
    assert {name: messages for name, messages in found.items() if messages} == {}


def clean_notebook() -> nbformat.NotebookNode:
    cells = [new_code_cell("import sys", execution_count=1), new_code_cell("1 + 1", execution_count=2)]
    return new_notebook(cells=cells)


def spoil(part: str) -> nbformat.NotebookNode:
    """The clean notebook with one fault."""
    notebook = clean_notebook()
    first, second = notebook.cells
    if part == "widget state":
        notebook.metadata.widgets = {}
    elif part == "widget output":
        data = {notebooks.WIDGET_MIME + "view+json": {}}
        second.outputs = [nbformat.v4.new_output("display_data", data)]
    elif part == "signed picture":
        png = base64.b64encode(b"...tEXtSoftware...").decode()
        second.outputs = [nbformat.v4.new_output("display_data", {"image/png": png})]
    elif part == "error":
        second.outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    elif part == "work in first cell":
        first.source += "\nprint(sys.path)"
    elif part == "magic in first cell":
        first.source = "%load_ext autoreload\n" + first.source
    elif part == "not run":
        second.execution_count = None
    elif part == "long cell":
        second.source = "x = 1\n" * (LONGEST_CELL + 1)
    elif part == "semicolon":
        second.source += ";"
    elif part == "opts out":
        second.metadata.tags = ["nbval-ignore-output"]
    elif part == "many words":
        notebook.cells.append(new_markdown_cell("word " * (minutes.WORDS_PER_MINUTE * MOST_MINUTES)))
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_says_how_to_go_on_another_day_and_links_what_comes_next(path):
    cells = nbformat.read(path, as_version=4).cells
    assert "*On another day:*" in cells[0].source and "Run All Above Selected" in cells[0].source
    onward = cells[-1].source.rpartition("**Next:**")[2]
    following = NOTEBOOKS[NOTEBOOKS.index(path) + 1:][:1]
    assert all(f"({other.name})" in onward for other in following)
    exercises = ROOT / "exercises" / path.stem / path.name
    assert f"(../exercises/{path.stem}/{path.name})" in onward or not exercises.exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_points_in_a_notebooks_table_are_those_of_the_exercises(path):
    last = nbformat.read(path, as_version=4).cells[-1].source
    said = {number: int(points) for number, points in re.findall(r"^\| (\d+\.\d) \|.*\| (\d+) \|$", last, re.MULTILINE)}
    assert said == {number: exercise(number).points for number in said}


def test_readme_says_how_many_minutes_a_notebook_takes_by_the_rule():
    rows = re.findall(r"^\| \[(\w+)\]\(notebooks/.*?\| ([^|]*) \| [^|]* \|$",
                      (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == {path.stem: minutes.minutes_of(nbformat.read(path, as_version=4)) for path in NOTEBOOKS}


@pytest.mark.parametrize("source", ["RingAllReduce()", "explorer = PipelineSchedule(p=4)\nexplorer",
                                    "from course_lib import widgets\nwidgets.WhichWire()"])
def test_a_widget_counts_however_a_cell_calls_it(source):
    reading = minutes.Reading()
    reading.add_code(new_code_cell(source))
    assert reading.widgets == 1


def test_a_clean_notebook_has_no_fault():
    assert faults(clean_notebook()) == []


@pytest.mark.parametrize("part", ["widget state", "widget output", "signed picture", "error", "work in first cell",
                                  "magic in first cell", "not run", "long cell", "semicolon", "opts out", "many words"])
def test_each_fault_of_a_notebook_is_found(part):
    assert len(faults(spoil(part))) == 1


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


def test_make_notebooks_stores_what_may_be_committed(stored):
    notebook = nbformat.read(stored, as_version=4)
    nbformat.validate(notebook)
    assert faults(notebook) == []
    assert notebook.cells[3].outputs[0].text == "True\n"  # the environment's own kernel, not the decoy
    assert "version" not in notebook.metadata.language_info


def test_stored_tracebacks_name_no_place_on_the_authors_machine():
    library, cell = f"{sys.prefix}/lib/a.py:1", "/tmp/ipykernel_12/34.py:5"
    traceback = f"File {ROOT}/course_lib/runtime/launch.py:3, {library}, {cell}, <f at 0x7f21aa0c1b80>"
    expected = "File course_lib/runtime/launch.py:3, .venv/lib/a.py:1, <cell>:5, <f at 0x0>"
    assert notebooks.without_local_text(traceback) == expected


def test_make_notebooks_twice_stores_the_same_bytes(stored, tmp_path):
    again = tmp_path / "again.ipynb"
    again.write_bytes(stored.read_bytes())
    notebooks.run(again)
    assert again.read_bytes() == stored.read_bytes()


def test_make_notebooks_leaves_a_notebook_that_fails_as_it_was(tmp_path):
    path = tmp_path / "bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("import sys"), new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="ZeroDivisionError"):
        notebooks.run(path)
    assert path.read_bytes() == before


def test_strict_nbval_refuses_one_changed_number_and_passes_the_other_cells(stored, tmp_path):
    wrong = tmp_path / "wrong.ipynb"
    changed = stored.read_text(encoding="utf-8").replace('"6 ranks\\n"', '"7 ranks\\n"')
    wrong.write_text(changed, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider", "--color=no",
               "-p", "tests.nbval_kernels"]
    finished = subprocess.run([*command, str(wrong)], cwd=ROOT, capture_output=True, text=True)
    assert "1 failed, 7 passed" in finished.stdout, finished.stdout
    assert "'7 ranks\\n' == '6 ranks\\n'" in finished.stdout


def test_a_changed_source_names_the_notebooks_that_show_it(tmp_path, monkeypatch, capsys):
    listing = repr(Listing("course_lib/zero/a.py, course_lib/zero/b.py", "def f(): ..."))
    shown = new_code_cell("show(f)", outputs=[nbformat.v4.new_output("execute_result", {"text/plain": listing})])
    (tmp_path / "notebooks").mkdir()
    difference = repr(Difference("course_lib/zero/a.py, course_lib/zero/b.py: f -> g", ("+ def g(): ...",)))
    differs = new_code_cell("show_diff(f, g)", outputs=[
        nbformat.v4.new_output("execute_result", {"text/plain": difference})])
    for name, cells in {"01_a": [new_markdown_cell("# course_lib/zero/b.py")], "02_b": [shown], "03_c": [],
                        "04_d": [differs]}.items():
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    notebooks.main(["showing", "course_lib/zero/b.py"])
    assert capsys.readouterr().out.split() == [str(Path("notebooks", name)) for name in ("02_b.ipynb", "04_d.ipynb")]


def test_the_text_of_exercises_lies_apart_from_the_text_of_their_chapter():
    chapter, solutions = ROOT / "notebooks" / "02_a.ipynb", ROOT / "solutions" / "02_a" / "02_a.ipynb"
    assert notebooks.text_of(chapter).name == "02_a.py"
    assert notebooks.text_of(solutions).name == "solutions_02_a.py"


def test_a_notebook_goes_through_its_text_and_back_with_outputs(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "TEXT_FOLDER", tmp_path / "text")
    path = tmp_path / "good.ipynb"
    path.write_bytes(stored.read_bytes())
    notebooks.to_text(path)
    notebooks.write_back(path)
    assert path.read_bytes() == stored.read_bytes()

    notebooks.to_text(path)
    text = tmp_path / "text" / "good.py"
    text.write_text(text.read_text(encoding="utf-8").replace("6 ranks", "8 ranks"), encoding="utf-8")
    with pytest.raises(SystemExit, match="make write-back"):
        notebooks.to_text(path)
    notebooks.write_back(path)
    edited = nbformat.read(path, as_version=4)
    assert "8 ranks" in edited.cells[2].source and edited.cells[3].outputs
    assert not text.exists()


@pytest.mark.parametrize("lines", ["#!/bin/bash\n#SBATCH --nodes=2\n#\n# a word", "%%bash\nls", "%%ranks 0,2\nx", "!ls",
                                   "# %load_ext x"])
@pytest.mark.parametrize("kind", [new_markdown_cell, new_code_cell])
def test_no_line_changes_on_its_way_through_the_text(lines, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(notebooks, "TEXT_FOLDER", tmp_path / "text")
    path, source = tmp_path / "a.ipynb", f"```bash\n{lines}\n```" if kind is new_markdown_cell else lines
    nbformat.write(new_notebook(cells=[kind(source)]), path)
    notebooks.to_text(path)
    notebooks.write_back(path)
    assert [cell.source for cell in nbformat.read(path, as_version=4).cells] == [source]
