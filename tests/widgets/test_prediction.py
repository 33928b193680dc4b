"""A prediction is locked once, and is then set beside what came out; without one the text is the same everywhere."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

from course_lib.widgets import predict
from course_lib.widgets.base import BadParameter


def locked(answer, **how):
    prediction = predict("How much?", **how)
    prediction.lock(answer)
    return prediction


@pytest.mark.parametrize(("typed", "unit", "meant"), [
    ("12", "", 12), ("1.2e3", "ms", 1200), ("40,000,000", "bytes", 40e6), ("40 MB", "bytes", 40e6),
    ("3 ms", "s", 0.003), ("12 %", "%", 12), ("-4", "", -4), ("7 B", "bytes", 7), ("2 bytes", "bytes", 2)])
def test_a_number_may_be_typed_as_people_write_it(typed, unit, meant):
    assert locked(typed, unit=unit).answer == pytest.approx(meant)


@pytest.mark.parametrize("typed", ["", "many", "nan", "inf", "1 2 x", "12 MB"])
def test_what_is_no_number_is_refused_with_an_example(typed):
    with pytest.raises(ValueError, match="expected a number of s, such as 1200 or 1.2e3"):
        locked(typed, unit="s")


def test_one_of_the_options_is_an_answer_and_nothing_else():
    assert locked("tree", options=["ring", "tree"]).answer == "tree"
    with pytest.raises(BadParameter, match="expected one of ring, tree"):
        locked("star", options=["ring", "tree"])
    with pytest.raises(ValueError, match="one of the options"):
        predict("Which?", options=["ring", "tree"]).against("star")
    for options in ([], ["ring"], ["ring", "ring"], [1, 2]):
        with pytest.raises(ValueError, match="at least two different texts"):
            predict("Which?", options=options)


def test_a_locked_prediction_stays_what_it_is():
    prediction = locked("12")
    with pytest.raises(BadParameter, match="is locked"):
        prediction.lock("13")
    assert prediction.answer == 12


def test_without_a_prediction_the_texts_hold_no_number():
    prediction = predict("How long?", unit="s")
    texts = {str(prediction), *(str(prediction.against(measured, measured)) for measured in (0.1, 0.2))}
    assert texts == {"Prediction: How long? (nothing is locked yet)", "Prediction: How long? (nothing was locked)"}
    assert prediction.against(0.1).headline() == "it is 100 ms; you have not predicted it"


@pytest.mark.parametrize(("said", "measured", "verdict"), [
    (12, 12, "exactly right"), (12.5, 12, "about right"), (24, 12, "2 times too much"), (3, 12, "4 times too little"),
    (1, 0, "too much"), (-1, 2, "too little"), (-8, -2, "4 times too little"), (-1, -4, "4 times too much")])
def test_the_verdict_is_a_factor_where_there_is_one(said, measured, verdict):
    assert locked(said).against(measured).verdict() == verdict


def test_the_comparison_says_all_three_numbers_and_draws_them():
    comparison = locked("40 MB", unit="bytes").against(12_000_000, formula=12e6)
    assert str(comparison) == "Prediction: How much? you said 40.0 MB, and it is 12.0 MB: 3.33 times too much"
    texts = [text.get_text() for text in comparison.figure().findobj(lambda artist: hasattr(artist, "get_text"))]
    assert {"you: 40.0 MB", "measured: 12.0 MB", "formula: 12.0 MB", "the formula says 12.0 MB"} <= {*texts}
    picture = imread(io.BytesIO(comparison.png()))[..., :3]
    assert np.unique(picture.reshape(-1, 3), axis=0).shape[0] > 20


@pytest.mark.parametrize(("said", "measured", "formula"), [(1, 1e6, None), (0, 0, 0), (-3, 5, None), (5, 5.0, 5)])
def test_any_numbers_have_a_picture(said, measured, formula):
    assert locked(said).against(measured, formula).png().startswith(b"\x89PNG")


def test_what_was_not_measured_is_not_called_so():
    compared = predict("how long?", unit="s").against(4.0, formula=3.0, source="simulated")
    assert compared.marks() == {"simulated": 4.0, "formula": 3.0}
    with pytest.raises(ValueError, match="source='formula' has a mark of its own"):
        predict("how long?").against(4.0, source="formula")


def test_of_options_it_says_whether_it_was_right():
    options = {"options": ["ring", "tree"]}
    assert str(locked("ring", **options).against("tree")).endswith("you said ring, and it is tree: not so")
    right = locked("tree", **options).against("tree")
    assert str(right).endswith("right") and right.png()
