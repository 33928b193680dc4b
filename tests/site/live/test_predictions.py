"""Predictions on a static page: Python reads them, the browser keeps them, and the answer stands beside."""

import pytest

from course_lib import widgets

pytestmark = [pytest.mark.browser, pytest.mark.ci]

TYPED, PICKED = "How many bytes does each rank send?", "Which is faster?"


def figure_of(page, question, kind="prediction"):
    return page.locator(f'figure.course-{kind}[data-question="{question}"]')


def test_a_number_is_read_by_python_and_kept_beside_its_answer_after_the_page_was_left(opened):
    found = opened("all.html")
    page, asked = found.page, figure_of(found.page, TYPED)
    answer = figure_of(page, TYPED, "answer")
    assert not answer.get_by_text("1,536 bytes").is_visible()
    asked.get_by_label(TYPED).fill("about 1.5 kB")
    asked.get_by_label(TYPED).press("Enter")
    asked.get_by_text("Locked: about 1.5 kB, read as 1,500 bytes.").wait_for()
    answer.get_by_text("You said: about 1.5 kB, read as 1,500 bytes: about right.").wait_for()
    assert answer.get_by_text("Answer: 1,536 bytes", exact=True).is_visible()
    page.reload()
    asked.get_by_text("Locked: about 1.5 kB, read as 1,500 bytes.").wait_for()
    assert answer.get_by_text("You said: about 1.5 kB, read as 1,500 bytes: about right.").is_visible()
    asked.get_by_role("button", name="Predict anew").click()
    asked.get_by_role("button", name="Predict anew").wait_for(state="hidden")
    assert not answer.get_by_text("1,536 bytes").is_visible()
    assert page.evaluate("localStorage.length") == 0 and found.errors == []


def test_what_is_no_number_is_refused_in_pythons_words_and_one_of_several_can_be_picked(opened):
    found = opened("all.html")
    page, typed, picked = found.page, figure_of(found.page, TYPED), figure_of(found.page, PICKED)
    typed.get_by_label(TYPED).fill("1,3 MB")
    typed.get_by_label(TYPED).press("Enter")
    with pytest.raises(ValueError) as refused:
        widgets.Prediction(question=TYPED, unit="bytes").lock("1,3 MB")
    typed.get_by_text(f"Not locked: {refused.value}.").wait_for()
    picked.get_by_label("tree").check()
    picked.get_by_role("button", name="Lock the prediction").click()
    picked.get_by_text("Locked: tree").wait_for()
    figure_of(page, PICKED, "answer").get_by_text("You said: tree: not so.").wait_for()
    assert found.errors == []


def test_the_answer_can_be_looked_at_without_a_prediction(opened):
    answer = figure_of(opened("all.html").page, TYPED, "answer")
    answer.get_by_text("predict first, or look").click()
    assert answer.get_by_text("Answer: 1,536 bytes", exact=True).is_visible()
