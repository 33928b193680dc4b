"""A teacher in formgrader, in a real JupyterLab with nbgrader's menus: sees the points, sets one, and it stays."""

import shutil

import pytest
from nbgrader.api import Gradebook

from tests.browser.conftest import SCREENSHOTS, VIEWPORT
from tests.grading.courses import ISOLATION, collectives_class, command_for, nbgrader  # noqa: F401 (a fixture)
from tests.grading.submissions import NAME
from tools.harness.browser import LabServer
from tools.lab import settings_in_environment

pytestmark = pytest.mark.browser


def marks(course) -> float:
    """What `nbgrader export` writes into its table."""
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        return gradebook.find_submission(NAME, "half").score


@pytest.mark.sweep(words="points that are given by hand, in a real browser")
def test_a_score_entered_in_formgrader_counts_and_survives_a_new_autograde(collectives_class, chromium,  # noqa: F811
                                                                           tmp_path):
    course = shutil.copytree(collectives_class, tmp_path / "course")
    for part in ("submitted", "autograded", "feedback"):  # one student is enough for formgrader's pages
        for folder in (course / part).iterdir():
            if folder.name != "half":
                shutil.rmtree(folder)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        for each in gradebook.assignment_submissions(NAME):
            if each.student.id != "half":
                gradebook.remove_submission(NAME, each.student.id)
    before = marks(course)
    server = LabServer(course, tmp_path / "state", settings_in_environment(teach=True))
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
    nbgrader(course, *command_for("half"), ISOLATION)
    assert marks(course) == before + 2
