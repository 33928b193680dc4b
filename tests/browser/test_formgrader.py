"""A teacher in formgrader, in a real JupyterLab with nbgrader's menus: sees the points, sets one, and it stays."""

import shutil

import nbformat
import pytest
from nbgrader.api import Gradebook

from course_lib.grading.trusted import sandbox
from tests.browser.conftest import SCREENSHOTS, VIEWPORT
from tests.grading.submissions import NAME, solve_half, submit
from tests.test_nbgrader import ROOT, command_for, nbgrader
from tools.harness.browser import LabServer
from tools.lab import settings_in_environment

pytestmark = pytest.mark.browser

ISOLATION = f"--TrustedGrade.isolation={'required' if sandbox.why_no_namespaces() is None else 'auto'}"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with one student, who has half of chapter 2, graded."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    for part in ("solutions", "exercises"):
        shutil.copytree(ROOT / part / NAME, folder / part / NAME)
    nbgrader(folder, "generate_assignment", NAME, "--force")
    stub, solved = (nbformat.read(folder / part / NAME / f"{NAME}.ipynb", as_version=4)
                    for part in ("exercises", "solutions"))
    submit(folder, "ada", solve_half(stub, solved))
    nbgrader(folder, "autograde", NAME, ISOLATION)
    return folder


def marks(course) -> float:
    """What `nbgrader export` writes into its table."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        return gradebook.find_submission(NAME, "ada").score


@pytest.mark.sweep(words="points that are given by hand, in a real browser")
def test_a_score_entered_in_formgrader_counts_and_survives_a_new_autograde(course, chromium, tmp_path_factory):
    before = marks(course)
    server = LabServer(course, tmp_path_factory.mktemp("state"), settings_in_environment(teach=True))
    try:
        context = chromium.new_context(viewport=VIEWPORT)
        # nbgrader's page asks another host for MathJax, and takes no score before the answer: say no at once
        context.route(lambda url: not url.startswith(server.url), lambda route: route.abort())
        page = context.new_page()
        page.goto(f"{server.url}/lab?reset")
        page.get_by_role("menuitem", name="Nbgrader").click()
        page.get_by_role("menuitem", name="Formgrader", exact=True).click()
        page.locator("iframe").wait_for()
        page.goto(f"{server.url}/formgrader/gradebook/{NAME}/{NAME}")
        page.get_by_text(f"{before:g} / 27").first.wait_for()
        page.get_by_role("link", name="Submission #1").click()
        score = page.locator("input.score[placeholder]").nth(2)  # 2.3, which is wrong; nothing hears it before
        score.fill("2")
        with page.expect_response(lambda answer: "/api/grade/" in answer.url and answer.request.method == "PUT"):
            score.press("Tab")
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "formgrader.png")
        context.close()
    finally:
        server.stop()
    assert marks(course) == before + 2
    nbgrader(course, *command_for("ada"), ISOLATION)
    assert marks(course) == before + 2
