"""The ways to a kernel without an installation: what they are made of fits the course, and says no address it lacks."""

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import minutes, notebooks
from tools.workspace import Workspace, is_for_colab

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COURSE = sorted(ROOT.glob("notebooks/*.ipynb"))
(CELL,) = filter(is_for_colab, nbformat.read(COURSE[0], as_version=4).cells)
(ADDRESS,) = re.findall(r"https://github.com/(\S+) /content", CELL.source)


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_readme_and_every_notebook_name_one_address_and_no_badge_opens_what_is_not_there():
    assert text_of("README.md").count(f"/{ADDRESS}") == 5
    shown = re.sub(r"<!--.*?-->", "", text_of("README.md"), flags=re.DOTALL)
    assert ("badge" in shown) == (ADDRESS != "OWNER/NAME")
    for path in COURSE:
        for cell in filter(is_for_colab, cells := nbformat.read(path, as_version=4).cells):
            assert cell is cells[1] and cell.source == CELL.source, path.name
            assert {*cell.metadata.tags} == {"colab", "remove-cell", "skip-execution"}
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory) -> Path:
    """One that has run, and has the cell."""
    path = tmp_path_factory.mktemp("course") / "notebooks" / "01_a.ipynb"
    path.parent.mkdir()
    nbformat.write(new_notebook(cells=[new_markdown_cell("# A"), CELL, new_code_cell("import os"),
                                       new_code_cell("os.sep")]), path)
    notebooks.run(path)
    return path


def test_the_cell_is_not_run_and_the_others_have_their_numbers_without_it(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    assert [is_for_colab(cell) for cell in cells] == [False, True, False, False]
    assert [cell.execution_count for cell in cells if "outputs" in cell] == [None, 1, 2]


def test_readers_copies_and_the_minutes_know_nothing_of_the_cell(notebook):
    with_cell = nbformat.read(notebook, as_version=4)
    without = new_notebook(cells=[cell for cell in with_cell.cells if not is_for_colab(cell)])
    assert minutes.minutes_of(with_cell) == minutes.minutes_of(without)
    course = Workspace(notebook.parents[1])
    course.fill()
    copy = nbformat.read(course.folder / "notebooks" / notebook.name, as_version=4)
    assert [cell.source for cell in copy.cells] == ["# A", "import os", "os.sep"]


def test_outside_of_colab_the_cell_does_nothing_and_there_it_clones_the_repository_and_runs_our_file(monkeypatch):
    done, names = [], {}
    exec(CELL.source, names)  # a script's names: there is no get_ipython
    assert set(names) == {"__builtins__"}
    shell = SimpleNamespace(system=done.append, run_line_magic=lambda *magic: done.append(magic))
    monkeypatch.setitem(sys.modules, "google.colab", object())
    exec(CELL.source, {"get_ipython": lambda: shell})
    clone = "git clone --quiet --depth 1 https://github.com/" + ADDRESS + " /content/course"
    assert done == [f"test -d /content/course || {clone}", ("run", "/content/course/tools/colab.py")]


def test_docker_carries_no_marks_keys_or_copies_of_this_machine():
    ignored = {line.strip("/") for line in text_of(".gitignore").splitlines()}
    kept_out = set(text_of(".dockerignore").splitlines())
    assert {name for name in ignored if name not in kept_out and f"**/{name}" not in kept_out} == {
        "*.pyc", ".nbgrader.log"}


def test_compose_takes_the_hubs_stage_and_gives_it_no_more_than_it_needs():
    hub = yaml.safe_load(text_of("compose.yaml"))["services"]["hub"]
    assert f" AS {hub['build']['target']}\n" in text_of("Dockerfile")
    assert hub["cap_drop"] == ["ALL"] and "SYS_ADMIN" not in hub["cap_add"] and "privileged" not in hub
    assert "127.0.0.1:" in hub["ports"][0], "reached from this machine alone, unless somebody says otherwise"


def test_citation_names_the_version_and_the_licence_of_pyproject_and_what_github_reads_is_yaml():
    citation, project = yaml.safe_load(text_of("CITATION.cff")), PYPROJECT["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert all(yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github").rglob("*.yml"))
