"""What notebooks show runs in a real JupyterLab, and the page reports no error.

The first notebook runs from top to bottom. Of the others the cells that show a widget, all on one page: what other
cells print is the same without a browser, and nbval compares it.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib import widgets
from tools.notebooks import METADATA
from tools.workspace import is_for_colab

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


def failed_cells(notebook: nbformat.NotebookNode) -> list[str]:
    """The cells that did not run or ended in an error that nobody announced, with that error."""
    failed = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        errors = [f"{out.ename}: {out.evalue}" for out in cell.outputs if out.output_type == "error"]
        if cell.execution_count is None:
            failed.append(f"cell {index} did not run")
        elif errors and "raises-exception" not in cell.metadata.get("tags", []):
            failed.append(f"cell {index}: {errors[0]}")
    return failed


def require_no_error(notebook):
    notebook.run_all()
    assert failed_cells(notebook.stored()) == []
    assert notebook.page.get_by_text("Error displaying widget").count() == 0
    assert notebook.console_errors == []


@pytest.mark.sweep(words="nbval runs it, and test_first_cells.py its first cells in JupyterLab")
def test_the_first_notebook_runs_in_jupyterlab_without_an_error(open_notebook):
    require_no_error(open_notebook(NOTEBOOKS[0]))


def widget_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The cells that begin with a call of one of the course's widgets, which may get a name."""
    names = [name for name in widgets.__all__
             if isinstance(kind := getattr(widgets, name), type) and issubclass(kind, widgets.Explorable)]
    call = re.compile(rf"(\w+ = )?({'|'.join(names)})\(")
    return [cell for cell in notebook.cells if cell.cell_type == "code" and call.match(cell.source)]


@pytest.mark.sweep(words="test_every_widget.py shows each of them, nbval runs the cells")
def test_the_widgets_of_the_other_notebooks_show_themselves_in_jupyterlab(tmp_path, open_notebook):
    together = new_notebook(metadata=METADATA)  # one page and one kernel, which take seconds to come up
    for path in NOTEBOOKS[1:-2]:  # the last two are the capstone, which trains, and the museum: nothing to explore
        notebook = nbformat.read(path, as_version=4)
        shown = widget_cells(notebook)
        assert shown, f"{path.name} shows no widget"
        imports = next(cell for cell in notebook.cells if cell.cell_type == "code" and not is_for_colab(cell))
        together.cells += [imports, *shown]
    nbformat.write(together, tmp_path / "widgets.ipynb")
    page = open_notebook(tmp_path / "widgets.ipynb")
    require_no_error(page)
    assert page.page.locator(".explorable svg").count() == len(widget_cells(together))


def test_a_failing_cell_and_a_page_error_are_noticed(tmp_path, open_notebook):
    script = "from IPython.display import Javascript\nJavascript('console.error(\"made up\")')"
    cells = [new_code_cell(script), new_code_cell("1 / 0", metadata={"tags": ["raises-exception"]}),
             new_code_cell("2 / 0"), new_code_cell("3 / 0")]
    nbformat.write(new_notebook(cells=cells, metadata=METADATA), tmp_path / "failing.ipynb")
    notebook = open_notebook(tmp_path / "failing.ipynb")
    notebook.run_all()
    failed = failed_cells(notebook.stored())
    assert failed == ["cell 2: ZeroDivisionError: division by zero", "cell 3 did not run"]
    assert [text for text in notebook.console_errors if "made up" in text]
