"""Every picture that JupyterLab shows a reader has its sentence as alt text, also in a notebook that is not trusted."""

import nbformat
import pytest

from tests.browser.conftest import SCREENSHOTS
from tests.browser.test_ranks import READERS
from tools.harness.browser import PAGE_S

pytestmark = [pytest.mark.browser, pytest.mark.ci]

IMPORTS = f"""{READERS}
import matplotlib.pyplot as plt, torch, torch.distributed as dist
from IPython.display import display
from course_lib.runtime import launch, record_memory, record_timeline, span
from course_lib.widgets import Chart, predict"""
# What its picture must say, by the code that shows it.
PICTURES = {
    'chart = Chart("it doubles", "n", "n", lines={"n": ([1, 2], [1, 2])}, detail="as it should")\nchart':
        "Chart: it doubles (n over n: n). as it should",
    "with record_timeline() as log, span('forward'):\n    torch.ones(9).sum()\nlog": "Timeline of rank 0: ",
    "with record_memory() as held:\n    kept = torch.ones(1000)\nheld": "MemoryLog: rank 0 peaks at 4.0 kB",
    "guess = predict('How many?')\nguess.lock(6)\nguess.against(7)": "you said 6, and it is 7",
    "def draw():\n    plt.plot([1, 2])\n    plt.title('of a rank')\n    plt.show()\nlaunch(draw, world_size=1)\nNone":
        "a figure: of a rank",
}
AS_PNG = 'display({"image/png": chart.png(), "text/plain": "the same"}, raw=True)'
IMAGES = """() => [...document.querySelectorAll(".jp-OutputArea-output img")].map((node) => {
    const { width, height } = node.getBoundingClientRect();
    return { alt: node.alt, width, height, whole: node.complete && node.naturalWidth > 0, natural: node.naturalWidth };
})"""


def wait_for_images(page, num):
    page.locator(".jp-OutputArea-output img").nth(num - 1).wait_for(timeout=1000 * PAGE_S)
    page.wait_for_function(f"(({IMAGES})()).every(({{ whole }}) => whole)")


HTML_MARGIN_PX = {1100: 20, 1500: 0}  # at the right, which JupyterLab leaves beside HTML and not beside a PNG


@pytest.mark.sweep("width", few=[1100], all=[1100, 1500], words="1 width of 2")
def test_a_picture_has_its_sentence_and_the_size_that_a_png_has(run_cells, width):
    notebook = run_cells(IMPORTS, *PICTURES, AS_PNG)
    notebook.page.set_viewport_size({"width": width, "height": 2400})
    wait_for_images(notebook.page, len(PICTURES) + 1)
    *images, png = notebook.page.evaluate(IMAGES)
    for image, words in zip(images, PICTURES.values(), strict=True):
        assert words in image["alt"], image
    assert png["alt"] == "" and png["natural"] == images[0]["natural"]
    assert images[0]["width"] == pytest.approx(png["width"] - HTML_MARGIN_PX[width], abs=0.1)
    assert notebook.console_errors == []


def test_a_saved_notebook_that_is_not_trusted_keeps_pictures_and_words(run_cells, lab_server):
    notebook = run_cells(IMPORTS, *PICTURES, AS_PNG)
    wait_for_images(notebook.page, len(PICTURES) + 1)
    saved = notebook.stored()
    saved.cells[0].source += "\n# somebody else's"  # of which no signature is known
    for cell in saved.cells:
        cell.metadata.pop("trusted", None)
    nbformat.write(saved, lab_server.root / "not_trusted.ipynb")
    kinds = {mime for cell in saved.cells for output in cell.outputs for mime in output.get("data", {})}
    assert "text/html" in kinds
    other = notebook.page.context.new_page()
    try:
        other.goto(f"{lab_server.url}/doc/tree/not_trusted.ipynb?reset")
        wait_for_images(other, len(PICTURES) + 1)
        assert not other.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted")
        for image, words in zip(other.evaluate(IMAGES), PICTURES.values(), strict=False):
            assert words in image["alt"]
        other.screenshot(path=SCREENSHOTS / "not_trusted.png")
    finally:
        other.evaluate("window.jupyterapp?.shell.currentWidget?.sessionContext.shutdown()")
        other.close()
