"""A prediction is locked once, and is then set beside what came out; without one the text is the same everywhere."""

import configparser
import re
from pathlib import Path

import pytest

from course_lib.widgets import predict, prediction
from course_lib.widgets.base import BadParameter
from tests.widgets.pictures import size_and_colours

OPTIONS = {"options": ["ring", "tree"]}


@pytest.fixture(autouse=True)
def no_question_is_known_yet(monkeypatch):
    monkeypatch.setattr(prediction, "_asked", {})


def lock_prediction(answer, **how):
    """A new prediction, whatever was asked before."""
    prediction._asked.clear()
    asked = predict("How much?", **how)
    asked.lock(answer)
    return asked


@pytest.mark.parametrize(("typed", "unit", "meant"), [
    ("12", "", 12), ("1.2e3", "ms", 1200), ("40,000,000", "bytes", 40e6), ("40 MB", "bytes", 40e6),
    ("3 ms", "s", 0.003), ("12 %", "%", 12), ("-4", "", -4), ("7 B", "bytes", 7), ("2 bytes", "bytes", 2),
    ("1.3 MiB", "bytes", 1.3 * 2**20), ("1300 KB", "bytes", 1.3e6), ("1.5M", "bytes", 1.5e6),
    ("about 1 MB", "bytes", 1e6), ("~12 mb", "bytes", 12e6), ("1 megabyte", "bytes", 1e6),
    ("1 300 000", "bytes", 1.3e6), ("1_000", "bytes", 1000), ("1,300", "bytes", 1300), ("46 MB", "MB", 46),
    ("0.05 GB", "MB", 50), ("2 M", "M", 2), ("3x", "times", 3), ("2 days", "hours", 48), ("5 min", "s", 300),
    ("30 us", "s", 30e-6), ("1 device", "devices", 1), ("2.8 million", "million", 2.8), ("35 percent", "%", 35),
    (".5", "times", 0.5), ("1E3 B", "bytes", 1000)])
def test_a_number_may_be_typed_as_people_write_it(typed, unit, meant):
    assert lock_prediction(typed, unit=unit).answer == pytest.approx(meant)


@pytest.mark.parametrize("unit, typed", [
    ("s", ("many", "nan", "inf", "1 2 x", "12 MB", "1.3.4", "s", "-", "1e", "3 Mbit", "2 s s")),
    ("bytes", ("about a megabyte", "a lot of MB", "MB")),
    ("MB", ("1,3 MB", "1,3", "12,34", "1,3,4", "1,3000", "0,5 MB")),  # a decimal comma, never read as thousands
], ids=["no number", "words", "a comma"])
def test_what_is_no_number_is_refused_with_the_endings_and_an_example(unit, typed, snapshot):
    refusals = set()
    for words in typed:
        with pytest.raises(BadParameter) as refused:
            lock_prediction(words, unit=unit)
        refusals.add(str(refused.value).replace(repr(words), "..."))
    assert "\n".join(sorted(refusals)) == snapshot


def test_one_of_the_options_is_an_answer_and_nothing_else():
    assert lock_prediction("tree", **OPTIONS).answer == "tree"
    with pytest.raises(BadParameter, match="expected one of ring, tree"):
        lock_prediction("star", **OPTIONS)
    with pytest.raises(ValueError, match="one of the options"):
        predict("Which?", **OPTIONS).against("star")
    for options in ([], ["ring"], ["ring", "ring"], [1, 2]):
        with pytest.raises(ValueError, match="at least two different texts"):
            predict("Which?", options=options)


def test_a_locked_prediction_stays_what_it_is_until_it_is_unlocked():
    prediction = lock_prediction("12")
    with pytest.raises(BadParameter, match="is locked, 12: unlock"):
        prediction.lock("13")
    prediction.lock("12")
    assert prediction.answer == 12
    prediction.unlock()
    assert prediction.answer is None and prediction.against(3).answer is None
    prediction.lock("13")
    assert prediction.answer == 13


def test_the_same_question_asked_again_is_the_same_prediction_with_its_answer():
    first = predict("How much?", unit="bytes")
    first.lock("1.3 MiB")
    assert predict("How much?", unit="bytes") is first and first.meaning == "1,363,149 bytes"
    assert predict("How much?", unit="s").answer is None, "another question"
    assert predict("How much?", options=["1.3 MiB", "2"]).answer is None
    first.close()
    again = predict("How much?", unit="bytes")
    assert again is not first and again.answer == 1.3 * 2**20, "a closed widget cannot be shown, its answer can"


def test_the_browser_locks_and_unlocks_by_messages_and_hears_why_not(monkeypatch):
    prediction, sent = predict("How much?", unit="bytes"), []
    monkeypatch.setattr(prediction, "send", sent.append)
    for message in ({"lock": "1,3 MB"}, {"lock": "40 MB"}, {"lock": "50 MB"}):
        prediction._handle_custom_msg(message, [])
    assert prediction.answer == 40e6 and [list(reply) for reply in sent] == [["refused"], ["refused"]]
    assert "a decimal part has a point" in sent[0]["refused"] and "is locked, 40 MB" in sent[1]["refused"]
    prediction._handle_custom_msg({"unlock": True}, [])
    assert prediction.answer is None and prediction.meaning == ""


def test_without_a_prediction_the_answer_is_a_line_of_text_without_a_picture_and_nbval_leaves_it_out():
    assert str(predict("How long?", unit="s")) == "Prediction: How long? (nothing is locked yet)"
    config = configparser.RawConfigParser()
    config.read(Path(__file__).parents[1] / "nbval_sanitize.cfg", encoding="utf-8")
    for outcome, words in ((predict("How much?", unit="bytes").against(1152, formula=1152.0), "1,152 bytes"),
                           (predict("How long?", unit="s").against(0.1, 0.2), "100 ms; the formula says 200 ms"),
                           (predict("Which?", **OPTIONS).against("tree"), "tree")):
        text = str(outcome)
        assert text == f"Answer: {words} (no prediction was locked)"
        assert outcome.figure() is None and "text/plain" in outcome._repr_mimebundle_()
        for section in config.sections():
            text = re.sub(config[section]["regex"], config[section]["replace"], text)
        assert text == "Answer (no prediction was locked)"


@pytest.mark.parametrize(("said", "measured", "verdict"), [
    (12, 12, "exactly right"), (12.5, 12, "about right"), (24, 12, "2 times too much"), (3, 12, "4 times too little"),
    (1, 0, "too much"), (-1, 2, "too little"), (-8, -2, "4 times too little"), (-1, -4, "4 times too much")])
def test_the_verdict_is_a_factor_where_there_is_one(said, measured, verdict):
    assert lock_prediction(said).against(measured).verdict() == verdict


def test_the_comparison_says_all_three_numbers_and_draws_them(snapshot):
    comparison = lock_prediction("40 MB", unit="bytes").against(12_000_000, formula=12e6)
    assert str(comparison) == snapshot
    texts = [text.get_text() for text in comparison.figure().findobj(lambda artist: hasattr(artist, "get_text"))]
    assert {"you: 40.0 MB", "measured: 12.0 MB", "formula: 12.0 MB",
            "you 40,000,000 bytes, measured 12,000,000 bytes, formula 12,000,000 bytes"} <= {*texts}
    assert size_and_colours(comparison.png())[1] > 3
    for said, measured, formula in ((1, 1e6, None), (0, 0, 0), (-3, 5, None), (5, 5.0, 5)):
        assert lock_prediction(said).against(measured, formula).png().startswith(b"\x89PNG")
    assert [prediction.tick(value, "bytes") for value in (1e6, 1.25e6, 1.5e6, 999, 2e12)] == [
        "1 MB", "1.25 MB", "1.5 MB", "999 B", "2000 GB"]  # two ticks never read alike


def test_what_was_not_measured_is_not_called_so_and_of_options_it_says_whether_it_was_right():
    compared = predict("how long?", unit="s").against(4.0, formula=3.0, source="simulated")
    assert compared.marks() == {"simulated": 4.0, "formula": 3.0}
    with pytest.raises(ValueError, match="source='formula' has a mark of its own"):
        predict("how long?").against(4.0, source="formula")
    for said, words in (("ring", "you said ring, and it is tree: not so"), ("tree", "right")):
        outcome = lock_prediction(said, **OPTIONS).against("tree")
        assert str(outcome).endswith(words) and outcome.png()
