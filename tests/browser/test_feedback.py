"""The feedback page that students get back, as wide as the window of a small laptop."""

from pathlib import Path

import nbformat
import nbgrader
import pytest
from nbformat.v4 import new_output
from traitlets.config import Config

from course_lib.grading.trusted.notebooks import is_check
from course_lib.grading.trusted.pages import FeedbackPage
from tests.browser.conftest import ROOT, photograph
from tests.grading.submissions import NAME

STATIC = Path(nbgrader.__file__).parent / "server_extensions/formgrader/static/node_modules/bootstrap/dist/css"
WHY = "  why: " + "the ranks' results differ from what was expected in the second of four pieces, " * 4
pytestmark = [pytest.mark.browser, pytest.mark.ci]


def test_the_contents_name_exercises_and_lines_wrap(chromium, tmp_path):
    """Chapter 2 where each exercise has 1.5 points and a long `why` line."""
    notebook = nbformat.read(ROOT / "exercises" / NAME / f"{NAME}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata.nbgrader["score"] = 1.5
        if is_check(cell):
            cell.outputs = [new_output("stream", text=WHY)]
    config = Config({"HTMLExporter": {"template_name": "feedback", "extra_template_paths": [str(STATIC)]}})
    marks = {"notebook": NAME, "score": 12.0, "max_score": 27.0, "late_penalty": 0}
    text, _ = FeedbackPage(config=config).from_notebook_node(notebook, resources={"nbgrader": marks})
    path = tmp_path / "feedback.html"
    path.write_text(text, encoding="utf-8")
    page = chromium.new_context(viewport={"width": 1046, "height": 1400}).new_page()
    page.goto(path.as_uri(), wait_until="domcontentloaded")
    photograph(page, "feedback")
    contents = page.locator("#toc li").all_inner_texts()
    assert "2.1 Reduce-scatter around the ring, both ways, 1.5 of 4 points" in contents
    assert not any("Test cell" in line for line in contents)
    assert page.get_by_text("why: the ranks' results").count() == 8
    assert page.evaluate("""[...document.querySelectorAll('pre')].filter(
        (each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.innerText)""") == []
    page.context.close()
