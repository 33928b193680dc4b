"""Predictions on a static page: Python reads them, the browser keeps them, and the answer stands beside."""

import pytest

from course_lib import widgets

pytestmark = [pytest.mark.browser, pytest.mark.ci]

TYPED, PICKED = "How many bytes does each rank send?", "Which is faster?"


def test_a_prediction_is_read_by_python_or_refused_in_its_words_and_kept_beside_its_answer(opened):
    found = opened("all.html")
    page = found.page

    def figure_of(question, kind="prediction"):
        return page.locator(f'figure.course-{kind}[data-question="{question}"]')

    typed, picked, answer = figure_of(TYPED), figure_of(PICKED), figure_of(TYPED, "answer")
    said = answer.get_by_text("You said: about 1.5 kB, read as 1,500 bytes: about right.")
    assert not answer.get_by_text("1,536 bytes").is_visible()
    with pytest.raises(ValueError) as refused:
        widgets.Prediction(question=TYPED, unit="bytes").lock("1,3 MB")
    for words, told in (("1,3 MB", f"Not locked: {refused.value}."),
                        ("about 1.5 kB", "Locked: about 1.5 kB, read as 1,500 bytes.")):
        typed.get_by_label(TYPED).fill(words)
        typed.get_by_label(TYPED).press("Enter")
        typed.get_by_text(told).wait_for()
    said.wait_for()
    assert answer.get_by_text("Answer: 1,536 bytes", exact=True).is_visible()
    page.reload()
    typed.get_by_text("Locked: about 1.5 kB, read as 1,500 bytes.").wait_for()
    assert said.is_visible()
    typed.get_by_role("button", name="Predict anew").click()
    typed.get_by_role("button", name="Predict anew").wait_for(state="hidden")
    assert not answer.get_by_text("1,536 bytes").is_visible()
    assert page.evaluate("localStorage.length") == 0
    answer.get_by_text("predict first, or look").click()
    assert answer.get_by_text("Answer: 1,536 bytes", exact=True).is_visible()

    picked.get_by_label("tree").check()
    picked.get_by_role("button", name="Lock the prediction").click()
    picked.get_by_text("Locked: tree").wait_for()
    figure_of(PICKED, "answer").get_by_text("You said: tree: not so.").wait_for()
    assert found.errors == []
