"""FitsOrNot shows the chapter's arithmetic: bars are its bytes, the verdict its limit, the price its price."""

import pytest

from course_lib import facts
from course_lib.pictures.scene import width_of
from course_lib.why_distribute import plan_run, training_memory
from course_lib.widgets import FitsOrNot
from course_lib.widgets.base import BadParameter
from course_lib.widgets.fits_or_not import (
    DEVICES,
    LEFT,
    MODELS,
    RIGHT,
    STAGE_NAMES,
    amount,
    outlook,
    scene_of,
    span_of,
)


def test_the_bars_are_the_bytes_of_the_formula():
    shown = outlook("Llama 3 8B", "H100", 8, "mixed")
    for stage, needed in enumerate(shown.by_stage):
        formula = training_memory(8.03e9, "mixed", stage, 8, needed.activations)
        assert needed == formula
    for name, needed in zip(STAGE_NAMES, shown.by_stage, strict=True):
        widths = [mark.at[2] for mark in scene_of(shown).marks if mark.key.startswith(f"{name}: ")]
        assert len(widths) == 4
        assert sum(widths) / (RIGHT - LEFT) == pytest.approx(needed.total / shown.scale, abs=1e-4)


def test_the_verdict_is_the_first_stage_that_leaves_a_tenth_free():
    assert outlook("Llama 3 8B", "H100", 1, "mixed").first_that_fits is None
    assert [outlook("Llama 3 8B", "H100", n, "mixed").first_that_fits for n in (8, 64, 4096)] == [3, 2, 2]
    assert outlook("Llama 2 7B", "B200", 1, "mixed").first_that_fits == 0
    assert "fits from ZeRO-3 on: 64.4 GB of 80 GB" in repr(FitsOrNot(num_devices=8))
    assert "does not fit, even with ZeRO-3" in repr(FitsOrNot(num_devices=1))


def test_time_and_money_are_those_of_plan_run_and_more_devices_cost_the_same():
    few, many = (outlook("GPT-3", "A100", n, "mixed").run for n in (512, 1024))
    run = plan_run(facts.model("GPT-3"), facts.accelerator("A100"), 1024)
    assert (many.days, many.usd) == (run.days, run.usd)
    assert few.usd == pytest.approx(many.usd) and few.days == pytest.approx(2 * many.days)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_choice_can_be_shown(model, device):
    for precision in ("fp32", "mixed"):
        shown = outlook(model, device, 64, precision)
        assert scene_of(shown).key == f"{model} {device} n=64 {precision}"
        assert 0 < shown.there / shown.scale <= 0.8
        if precision == "fp32" and "fp32" not in facts.accelerator(device).peaks:
            assert shown.run is None and "no time" in shown.detail


def test_a_name_that_facts_does_not_know_is_refused_and_the_old_one_stays():
    widget = FitsOrNot()
    for name, value in (("model", "GPT-5"), ("device", "Z100"), ("precision", "bf16")):
        with pytest.raises(BadParameter, match="expected one of"):
            setattr(widget, name, value)
    with pytest.raises(BadParameter, match="whole number"):
        widget.num_devices = 0
    assert (widget.model, widget.device, widget.num_devices, widget.precision) == ("Llama 3 8B", "H100", 8, "mixed")
    with pytest.raises(BadParameter, match="Mixtral"):
        FitsOrNot(model="Mixtral 8x7B")


def test_a_change_makes_new_frames_and_a_new_sentence():
    widget = FitsOrNot()
    before, sentence = widget.frames, repr(widget)
    widget.num_devices = 64
    assert widget.frames["key"] == "Llama 3 8B H100 n=64 mixed" and widget.frames != before and repr(widget) != sentence


def test_no_verdict_lies_on_the_line_of_the_limit():
    for model in MODELS:
        for n in (1, 8, 64):
            scene = scene_of(outlook(model, "H100", n, "mixed"))
            limit = next(mark.at[0] for mark in scene.marks if mark.key == "limit")
            for mark in scene.marks:
                if mark.key.endswith(" in all"):
                    assert not mark.at[0] <= limit <= mark.at[0] + width_of(mark.text, 12, bold=True)


def test_money_is_a_range_and_a_long_time_is_years():
    assert outlook("Llama 3 8B", "H100", 8, "mixed").detail.startswith("7.2 years, 1.36 to 6.23 million USD, ")
    assert span_of(972_332, 2.4e6) == "972 thousand to 2.4 million USD" and span_of(840, 840) == "840 USD"
    assert "no price" in outlook("Llama 3 8B", "V100", 8, "mixed").detail


def test_the_question_says_what_activations_are_counted():
    assert outlook("GPT-3", "A100", 8, "mixed").question.endswith("one row of 2,048 tokens at a time")
    assert outlook("Chinchilla", "A100", 8, "mixed").question.endswith("activations unknown")


def test_amounts_are_short_and_say_their_size():
    assert [amount(v) for v in (840, 972_332, 71.7e6, 2.5e9)] == ["840", "972 thousand", "71.7 million", "2.5 billion"]
