"""What JupyterLab shows a reader: each picture has its sentence, also in a notebook that is not trusted, and axe-core
finds nothing serious, in light and in dark.
"""

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import photograph
from tests.browser.test_every_widget import EVERY
from tools.harness.browser import PAGE_S, THEMES

pytestmark = [pytest.mark.browser, pytest.mark.ci]

# What tests set, and no reader, is taken away.
IMPORTS = """import os
for name in ("PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT"):
    os.environ.pop(name, None)
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
IMAGES = """() => [...document.querySelectorAll(".jp-OutputArea-output img")].map((node) => ({ alt: node.alt,
    width: node.getBoundingClientRect().width, whole: node.complete && node.naturalWidth > 0,
    natural: node.naturalWidth }))"""
HTML_MARGIN_PX = {1100: 20, 1500: 0}  # at the right, which JupyterLab leaves beside HTML and not beside a PNG


def images_on(page, num):
    page.locator(".jp-OutputArea-output img").nth(num - 1).wait_for(timeout=1000 * PAGE_S)
    page.wait_for_function(f"(({IMAGES})()).every(({{ whole }}) => whole)")
    return page.evaluate(IMAGES)


def require_words(images):
    for image, words in zip(images, PICTURES.values(), strict=True):
        assert words in image["alt"], image


@pytest.mark.sweep("width", few=[1100], all=[1100, 1500], words="1 width of 2")
def test_a_picture_has_its_sentence_and_a_pngs_size_and_keeps_them_in_a_notebook_that_is_not_trusted(
        run_cells, lab_server, width):
    notebook = run_cells(IMPORTS, *PICTURES, AS_PNG)
    notebook.page.set_viewport_size({"width": width, "height": 2400})
    *images, png = images_on(notebook.page, len(PICTURES) + 1)
    require_words(images)
    assert png["alt"] == "" and png["natural"] == images[0]["natural"]
    assert images[0]["width"] == pytest.approx(png["width"] - HTML_MARGIN_PX[width], abs=0.1)
    assert notebook.console_errors == []

    saved = notebook.stored()
    saved.cells[0].source += "\n# somebody else's"  # of which no signature is known
    for cell in saved.cells:
        cell.metadata.pop("trusted", None)
    nbformat.write(saved, lab_server.root / "not_trusted.ipynb")
    other = notebook.page.context.new_page()
    try:
        other.goto(f"{lab_server.url}/doc/tree/not_trusted.ipynb?reset")
        require_words(images_on(other, len(PICTURES) + 1)[:-1])
        assert not other.evaluate("window.jupyterapp.shell.currentWidget.content.widgets[1].model.trusted")
        photograph(other, "not_trusted")
    finally:
        other.evaluate("window.jupyterapp?.shell.currentWidget?.sessionContext.shutdown()")
        other.close()


OTHERS = ("predict('How many?', unit='bytes')", "predict('Which?', options=['ring', 'tree'])",
          "locked = predict('Which is locked?', options=['ring', 'tree'])\n"
          "if not locked.locked:\n    locked.lock('ring')\nlocked",
          "from course_lib.runtime import doctor\ndoctor()",
          "from course_lib.show import show, show_diff\nshow(span)", "show_diff(record_memory, record_timeline)",
          "def count():\n    with record_communication() as log:\n        dist.all_reduce(torch.ones(9))\n"
          "    return log\nlaunch(count, world_size=1)[0]",
          "from course_lib.grading.report import Report, Verdict\nfor verdict in Verdict:\n"
          "    display(Report('2.1', 'ring', verdict, 4, '6 messages', '7 messages', 'why', 'a warning'))")
CELLS = (f"{IMPORTS}\nfrom course_lib import widgets\nfrom course_lib.runtime import record_communication",
         *PICTURES, *OTHERS, *(f"widgets.{name}()" for name in EVERY))
RULES = {"duplicate-id-aria", "form-field-multiple-labels", "image-alt", "label", "scrollable-region-focusable"}


def faults(page):
    """(rule, place) of what axe-core finds serious in the outputs, or is not sure of by one of RULES."""
    answer = Axe().run(page, ".jp-OutputArea-output", {"resultTypes": ["violations", "incomplete"]}).response
    found = [each for each in answer["violations"] if each["impact"] in ("serious", "critical")]
    found += [each for kind in ("violations", "incomplete") for each in answer[kind] if each["id"] in RULES]
    return [(each["id"], node["html"][:200]) for each in found for node in each["nodes"]]


@pytest.mark.timeout(240)
@pytest.mark.sweep("theme", few=["light"], all=THEMES, words="1 theme of 2")
def test_nothing_that_the_course_shows_has_a_serious_fault(run_cells, theme):
    notebook = run_cells(*CELLS)
    page = notebook.page
    page.set_viewport_size({"width": 1100, "height": 16_000})  # all of it is on the page
    notebook.change_theme(theme)
    page.locator(".explorable svg").nth(len(EVERY) - 1).wait_for()
    images_on(page, len(PICTURES))
    assert page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']").count() == 0
    photograph(page, f"axe_{theme}")
    assert faults(page) == []
    page.locator(".jp-OutputArea-output img").first.evaluate("(node) => node.removeAttribute('alt')")
    assert "image-alt" in dict(faults(page))  # so it looks where the pictures are
