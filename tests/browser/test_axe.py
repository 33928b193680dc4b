"""axe-core over all that the course shows in JupyterLab: nothing serious, in light and in dark."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import photograph
from tests.browser.test_alt_text import IMPORTS, PICTURES, images_on
from tests.browser.test_every_widget import EVERY
from tools.harness.browser import THEMES

pytestmark = [pytest.mark.browser, pytest.mark.ci, pytest.mark.timeout(240)]

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
