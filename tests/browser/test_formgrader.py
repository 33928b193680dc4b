"""A teacher in formgrader, in a real JupyterLab with nbgrader's menus: sees the points, sets one, and it stays."""

import shutil

import pytest
from nbgrader.api import Gradebook

from tests.browser.conftest import VIEWPORT, photograph
from tests.grading.courses import ISOLATION, collectives_class, command_for, nbgrader  # noqa: F401 (a fixture)
from tests.grading.submissions import NAME
from tools.harness.browser import LabServer
from tools.lab import settings_in_environment

pytestmark = pytest.mark.browser


@pytest.mark.sweep(words="points that are given by hand, in a real browser")
def test_a_score_entered_in_formgrader_counts_and_survives_a_new_autograde(
        collectives_class, chromium, tmp_path):  # noqa: F811
    course = shutil.copytree(collectives_class, tmp_path / "course")

    def gradebook():
        return Gradebook(f"sqlite:///{course / 'gradebook.db'}")

    def marks():
        with gradebook() as book:
            return book.find_submission(NAME, "half").score

    with gradebook() as book:  # one student is enough for formgrader's pages
        for student in [each.student.id for each in book.assignment_submissions(NAME) if each.student.id != "half"]:
            book.remove_submission(NAME, student)
            for part in ("submitted", "autograded", "feedback"):
                shutil.rmtree(course / part / student, ignore_errors=True)
    before = marks()
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
        photograph(page, "formgrader")
        context.close()
    finally:
        server.stop()
    assert marks() == before + 2
    nbgrader(course, *command_for("half"), ISOLATION)
    assert marks() == before + 2
