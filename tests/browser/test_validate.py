"""nbgrader's Validate button, which is pressed before handing in, says what `check` says; as `make teach` shows it."""

from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import course_server
from tests.grading.submissions import NAME, POINTS, solve_half

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.browser, pytest.mark.ci]


@pytest.fixture(scope="module")
def lab_server(chromium_path, tmp_path_factory):
    yield from course_server(tmp_path_factory, teach=True)


def submission(kind: str) -> nbformat.NotebookNode:
    stub, solved = (nbformat.read(ROOT / part / NAME / f"{NAME}.ipynb", as_version=4)
                    for part in ("exercises", "solutions"))
    if kind == "half":
        return solve_half(stub, solved)
    for cell in solved.cells:
        cell.metadata.pop("editable", None)
    return solved


SAID = {  # how many checks fail, and words
    "half": (5, ["2.3 my_ring_all_reduce: not right yet, 0 of 3 points",  # the other four are stubs
                 f"2.4 my_tree_reduce: not written yet, 0 of {POINTS['2.4']} points"]),
    "right": (0, ["Success! Your notebook passes all the tests."]),
}


@pytest.mark.sweep(words="nbgrader's Validate button")
@pytest.mark.parametrize("kind", SAID)
def test_validate_says_which_checks_do_not_pass(open_notebook, tmp_path, kind):
    num_failed, says = SAID[kind]
    path = tmp_path / f"{kind}.ipynb"
    nbformat.write(submission(kind), path)
    notebook = open_notebook(path)
    notebook.page.get_by_role("button", name="Validate").click()
    dialog = notebook.page.locator(".jp-Dialog")
    dialog.get_by_text("Validation Results").wait_for(timeout=150_000)
    text = dialog.inner_text()
    assert text.count("The following cell failed") == num_failed
    assert all(words in text for words in says)
