"""Readers' copies: without outputs, never overwritten, and told of what is new."""

import re
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest

from tools import workspace
from tools.workspace import ROOT, Workspace, said_of


@pytest.fixture
def course(tmp_path):
    """A small course: one notebook, its exercises, and a workspace that has been filled."""
    for relative in ("notebooks/01_a.ipynb", "exercises/01_a/01_a.ipynb"):
        write(tmp_path / relative, "1 + 1")
    Workspace(tmp_path).fill()
    return tmp_path


def write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cell = nbformat.v4.new_code_cell(source, execution_count=3, outputs=[
        nbformat.v4.new_output("stream", text="the answer\n")])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)


def sources(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): nbformat.read(path, as_version=4).cells[0].source
            for path in sorted(folder.rglob("*.ipynb"))}


def test_copies_hold_the_cells_and_no_outputs_and_a_second_call_changes_and_says_nothing(course):
    for original in ("notebooks/01_a.ipynb", "exercises/01_a/01_a.ipynb"):
        cell = nbformat.read(course / "workspace" / original, as_version=4).cells[0]
        assert (cell.source, cell.outputs, cell.execution_count) == ("1 + 1", [], None)
        assert nbformat.read(course / original, as_version=4).cells[0].outputs, "the original keeps its outputs"
    before = {path: path.stat().st_mtime_ns for path in course.rglob("workspace/**/*.ipynb")}
    assert Workspace(course).fill() == [] and said_of([], "workspace", first=False) == ""
    assert before == {path: path.stat().st_mtime_ns for path in course.rglob("workspace/**/*.ipynb")}


def opened(copy: Path, *outputs: str) -> None:
    """As JupyterLab saves a notebook that is only opened; with `outputs` as one that was run."""
    notebook = nbformat.read(copy, as_version=4)
    notebook.metadata["widgets"], notebook.cells[0].metadata["trusted"] = {"state": {}}, True
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text=text) for text in outputs]
    nbformat.write(notebook, copy)


def forgotten(copy: Path) -> None:
    write(copy, "mine")
    (copy.parents[1] / ".given.json").unlink()


@pytest.mark.parametrize("done, is_theirs", [
    (lambda copy: None, False), (opened, False), (Path.unlink, False), (lambda copy: opened(copy, "mine"), True),
    (lambda copy: write(copy, "mine"), True), (lambda copy: copy.write_text("{ half a noteb"), True), (forgotten, True),
], ids=["untouched", "opened", "deleted", "run", "edited", "damaged", "given by nobody who remembers"])
def test_what_is_the_readers_stays_and_a_new_original_arrives_beside_it_or_in_its_place(course, done, is_theirs):
    copy, own = course / "workspace/notebooks/01_a.ipynb", Path("notebooks/01_a.ipynb")
    done(copy)
    before = copy.exists() and copy.read_bytes()
    write(course / own, "2 + 2")
    written = Workspace(course).fill()
    assert written == [own.with_suffix(".new.ipynb" if is_theirs else ".ipynb")]
    assert nbformat.read(course / "workspace" / written[0], as_version=4).cells[0].source == "2 + 2"
    assert not is_theirs or copy.read_bytes() == before
    assert Workspace(course).fill() == [], "said once"


def test_what_lies_beside_is_the_readers_as_well_once_it_is_edited(course):
    beside = course / "workspace/notebooks/01_a.new.ipynb"
    write(course / "workspace/notebooks/01_a.ipynb", "mine")
    for text in ("2 + 2", "3 + 3"):  # nobody has touched the first one
        write(course / "notebooks/01_a.ipynb", text)
        written = Workspace(course).fill()
        assert written == [Path("notebooks/01_a.new.ipynb")] and "01_a.new.ipynb" in said_of(written, "", False)
    write(beside, "mine, too")
    write(course / "notebooks/01_a.ipynb", "4 + 4")
    Workspace(course).fill()
    assert sources(course / "workspace/notebooks") == {
        "01_a.ipynb": "mine", "01_a.new.ipynb": "mine, too", "01_a.new2.ipynb": "4 + 4"}


def test_only_the_cell_that_answers_a_prediction_is_folded(course):
    write(course / "notebooks/01_a.ipynb", "guess.against(3)")
    Workspace(course).fill()
    folded, other = (nbformat.read(course / "workspace" / name, as_version=4).cells[0].metadata
                     for name in ("notebooks/01_a.ipynb", "exercises/01_a/01_a.ipynb"))
    assert folded.jupyter.source_hidden and "jupyter" not in other


def test_the_line_tells_what_came_first_what_is_new_and_what_lies_beside():
    new, beside = Path("notebooks/05_b.ipynb"), Path("notebooks/01_a.new.ipynb")
    assert "your copies are there, notebooks/05_b.ipynb;" in said_of([new], "workspace", first=True)
    assert "your copies are there, 4 notebooks;" in said_of([new] * 4, "workspace", first=True)
    line = said_of([new, beside], "workspace", first=False)
    assert "nothing of yours was in their place: notebooks/05_b.ipynb; yours stay as they are" in line
    assert line.endswith("the new ones lie beside them: notebooks/01_a.new.ipynb")


def test_starting_over_asks_and_keeps_the_old_folder(course, monkeypatch):
    write(course / "workspace/notebooks/01_a.ipynb", "mine")
    for answer, starts in (("", False), ("n", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        with nullcontext() if starts else pytest.raises(SystemExit):
            workspace.start_over(Workspace(course))
    assert Workspace(course).fill() and sources(course / "workspace/notebooks") == {"01_a.ipynb": "1 + 1"}
    assert sources(course / "workspace-old-1/notebooks") == {"01_a.ipynb": "mine"}


def test_links_between_the_copies_lead_somewhere():
    paths = [path for pattern in workspace.ORIGINALS for path in ROOT.glob(pattern)]
    copied = {path.relative_to(ROOT) for path in paths} | {Path(page) for page in workspace.PAGES}
    for path in paths:
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # In[2](9) in an example is no link
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
            target = (path.parent / link).resolve()
            assert target.is_relative_to(ROOT) and target.relative_to(ROOT) in copied, f"{path.name}: {link}"


@pytest.mark.parametrize("path", sorted((ROOT / "exercises").glob("*/*.ipynb")), ids=lambda path: path.stem)
def test_every_exercise_notebook_links_its_chapter_and_onward(path):
    cells = nbformat.read(path, as_version=4).cells
    chapters = sorted(each.name for each in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
    own = f"](../../notebooks/{path.name})"
    following = [name for name in chapters if name[:2] == f"{int(path.name[:2]) + 1:02}"]
    # after the last chapter with exercises back to the start, which lists all chapters
    onward = following[0] if following and int(path.name[:2]) < 10 else "00_start_here.ipynb"
    assert own in cells[0].source and "hint=" not in cells[0].source
    assert own in cells[-1].source and f"](../../notebooks/{onward})" in cells[-1].source
    assert cells[-2].source.endswith("progress()") and "nbgrader" not in cells[-2].metadata


def test_the_pages_that_notebooks_link_are_copied_and_a_readers_notes_in_them_stay(course):
    page = course / "docs/glossary.md"
    page.parent.mkdir()
    page.write_text("bubble", encoding="utf-8")
    Workspace(course).fill()
    copy = course / "workspace/docs/glossary.md"
    assert copy.read_text(encoding="utf-8") == "bubble"
    copy.write_text("bubble, my words", encoding="utf-8")
    page.write_text("bubble, rank", encoding="utf-8")
    assert Workspace(course).fill() == [Path("docs/glossary.new.md")]
    assert copy.read_text(encoding="utf-8") == "bubble, my words"
