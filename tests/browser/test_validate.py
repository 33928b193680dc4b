"""nbgrader's Validate button, which is pressed before handing in, says what `check` says; as `make teach` shows it."""

import nbformat
import pytest

from tests.browser.conftest import ROOT, serve
from tests.grading.submissions import NAME, POINTS, solve_half
from tools.lab import settings_in_environment

pytestmark = [pytest.mark.browser, pytest.mark.ci]


@pytest.fixture(scope="module")
def lab_server(chromium_path, tmp_path_factory):
    yield from serve(tmp_path_factory, settings_in_environment(teach=True))


@pytest.mark.sweep(words="nbgrader's Validate button")
@pytest.mark.parametrize("kind, num_failed, says", [
    ("half", 5, ["2.3 my_ring_all_reduce: not right yet, 0 of 3 points",  # the other four are stubs
                 f"2.4 my_tree_reduce: not written yet, 0 of {POINTS['2.4']} points"]),
    ("right", 0, ["Success! Your notebook passes all the tests."])])
def test_validate_says_which_checks_do_not_pass(open_notebook, tmp_path, kind, num_failed, says):
    stub, solved = (nbformat.read(ROOT / part / NAME / f"{NAME}.ipynb", as_version=4)
                    for part in ("exercises", "solutions"))
    for cell in solved.cells if kind == "right" else []:
        cell.metadata.pop("editable", None)
    path = tmp_path / f"{kind}.ipynb"
    nbformat.write(solved if kind == "right" else solve_half(stub, solved), path)
    notebook = open_notebook(path)
    notebook.page.get_by_role("button", name="Validate").click()
    dialog = notebook.page.locator(".jp-Dialog")
    dialog.get_by_text("Validation Results").wait_for(timeout=150_000)
    text = dialog.inner_text()
    assert text.count("The following cell failed") == num_failed
    assert all(words in text for words in says)
