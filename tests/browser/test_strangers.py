"""A student's notebook on the pages where others read it: whatever it holds, no script of it runs."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from nbgrader.api import Gradebook
from nbgrader.apps import GenerateFeedbackApp
from playwright.sync_api import Browser, Page

from tests.browser.conftest import photograph
from tests.grading import small_class
from tests.grading.courses import made_course, run_here  # noqa: F401 (a fixture)
from tests.grading.small_class import NAME
from tools.harness.browser import LabServer
from tools.lab import settings_in_environment

pytestmark = [pytest.mark.browser, pytest.mark.ci]

RUN = "document.title = 'broken in'"
NAMED = f'mallory"><img src=x onerror="{RUN}">'
CODE = f'<script>{RUN}</script>'
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
MARKDOWN = [
    CODE, f'<img src=x onerror="{RUN}">', f'<svg onload="{RUN}"><animate onbegin="{RUN}" attributeName=x dur=1s></svg>',
    f'<a href="javascript:{RUN}" class="hostile">a</a> [b](javascript:{RUN}) [c](data:text/html,{CODE})',
    '<a href=" data:text/html,x">d</a> <a href="da&#9;ta:x">e</a>',
    f'<iframe srcdoc="{CODE}"></iframe><object data="x.html"></object><embed src="x.html">',
    '<form action="/hub"><input name=password></form><meta http-equiv="refresh" content="0;url=http://evil.test/">',
    '<base href="http://evil.test/"><link rel=stylesheet href="http://evil.test/x.css"><style>@import "x";</style>',
    f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={RUN}&gt;">',
    f'<details open ontoggle="{RUN}">x</details>', f'```x"><script>{RUN}</script>\ny\n```',
    f'$a<script>{RUN}</script>$',
    '![](http://evil.test/x.png) ![](/formgrader?path=/tmp) <img src="/formgrader?path=/tmp">',
    f'![]("onerror="{RUN}) <x y="\\"><script>{RUN}</script>">',
    '<div id="check_rows" class="navbar-fixed-top">over</div>',
]
OUTPUTS = [
    {"text/html": CODE}, {"text/html": f'<img src=x onerror="{RUN}">'}, {"application/javascript": RUN},
    {"image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"/>'}, {"text/markdown": MARKDOWN[1]},
    {"text/latex": CODE}, {"text/vnd.mermaid": f'graph TD; A["{MARKDOWN[1]}"]'}, {"text/plain": CODE},
    {"application/vnd.jupyter.widget-view+json": {"model_id": f"</script>{CODE}"}},
]


def hostile(notebook: NotebookNode) -> NotebookNode:
    """With a script wherever a notebook can hold one, and one picture that is ours to show."""
    shown = new_markdown_cell("## A heading\n\n**bold** and `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
                              "![pixel](attachment:p.png)", attachments={"p.png": {"image/png": PIXEL}})
    code = new_code_cell(CODE, metadata={"tags": [f'"><img src=x onerror="{RUN}">']}, id="c")
    code.outputs = [new_output("display_data", data) for data in OUTPUTS]
    wide = {"image/png": {"width": f"1 onerror={RUN.replace(' ', '')}"}}  # nbconvert writes it without quotes
    code.outputs += [new_output("display_data", {"image/png": "x"}, metadata=wide),
                     new_output("stream", text=CODE), new_output("error", ename=CODE, evalue=CODE, traceback=[CODE])]
    notebook.cells += [shown, code, new_raw_cell(CODE), *map(new_markdown_cell, MARKDOWN)]
    notebook.metadata |= {"title": CODE, "language_info": {"name": f'"><img src=x onerror="{RUN}">'}}
    return notebook


@pytest.fixture(scope="module")
def course(made_course: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """With one graded notebook of one student, and files of theirs beside it."""
    folder = shutil.copytree(made_course, tmp_path_factory.mktemp("strangers") / "course")
    notebook = hostile(nbformat.reads(small_class.text_of("exercises"), 4))
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as gradebook:
        gradebook.add_student("mallory", first_name=NAMED, last_name=NAMED)
        submission = gradebook.add_submission(NAME, "mallory")
        (folder / "id").write_text(submission.notebooks[0].id)
    own = folder / "autograded" / "mallory" / NAME
    own.mkdir(parents=True)
    nbformat.write(notebook, own / f"{NAME}.ipynb")
    (own / "x.html").write_text(f"<title>quiet</title>{CODE}")
    (own / "nbgrader_config.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    return folder


def require_harmless(page: Page, asked: list[str]) -> None:
    page.wait_for_timeout(500)
    assert "broken in" not in page.title() and page.locator("a.hostile, form, iframe, object, embed, base").count() == 0
    assert [address for address in asked if "evil.test" in address or "path=" in address or "cdnjs" in address] == []
    assert page.evaluate("""[...document.querySelectorAll('a')].filter(
        (each) => /^(javascript|data|vbscript):/i.test(each.href)).length""") == 0
    assert page.locator("h2", has_text="A heading").is_visible() and page.locator("td", has_text="2").first.is_visible()
    assert page.evaluate("document.querySelector('img[alt=pixel]').naturalWidth") == 1
    assert page.get_by_text(CODE).count() > 2  # it is there to read


def opened(chromium: Browser) -> tuple[Page, list[str]]:
    page, asked = chromium.new_context(viewport={"width": 1100, "height": 2400}).new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    return page, asked


def test_a_feedback_page_shows_it_as_text(chromium, course):
    run_here(GenerateFeedbackApp(), course, NAME)
    page, asked = opened(chromium)
    page.goto((course / "feedback" / "mallory" / NAME / f"{NAME}.html").as_uri())
    require_harmless(page, asked)
    photograph(page, "feedback_hostile", full_page=True)
    page.context.close()


def test_formgrader_shows_it_as_text_takes_marks_and_runs_no_configuration_of_a_students(chromium, course, tmp_path):
    server = LabServer(course, tmp_path, settings_in_environment(teach=True))
    try:
        page, asked = opened(chromium)
        first = page.goto(f"{server.url}/formgrader/submissions/{(course / 'id').read_text()}/")
        assert first.status == 200
        require_harmless(page, asked)
        page.locator("input.score").first.fill("1")  # its own scripts are at work
        page.locator("input.score").first.press("Tab")
        page.wait_for_function("document.querySelector('.score-saved').style.display !== 'none'")
        page.locator(".glyphicon-eye-open").click()
        assert page.get_by_text(NAMED).first.is_visible()
        photograph(page, "formgrader_hostile", full_page=True)
        page.goto(f"{server.url}/formgrader/submissions/{(course / 'id').read_text()}/x.html")
        assert page.title() == "quiet"
        answer = page.goto(f"{server.url}/formgrader?path={course / 'autograded' / 'mallory' / NAME}")
        assert answer.status == 403 and not (course / "ran").exists()
        page.goto(f"{server.url}/formgrader")
        page.locator("td.name", has_text=NAME).wait_for()
        page.context.close()
    finally:
        server.stop()
