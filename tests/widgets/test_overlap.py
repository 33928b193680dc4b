"""BucketOverlap says what the simulation found, and refuses what cannot be simulated."""

import json

import pytest

from course_lib.costs.overlap import MACHINES, MODELS
from course_lib.pictures.figures import to_png
from course_lib.pictures.parts import round_ticks
from course_lib.pictures.units import human_seconds
from course_lib.widgets import BucketOverlap
from course_lib.widgets.base import BadParameter
from course_lib.widgets.bucket_overlap import overlap, percent, ranks_of
from tests.widgets.pictures import size_and_colours


def test_the_widget_says_what_the_simulation_found():
    shown = BucketOverlap(bucket_cap_mb=25)
    step = overlap(shown.model, shown.machine, shown.num_ranks, shown.bucket_cap_mb)
    assert repr(shown) == (
        "BucketOverlap, GPT-2, 124M on 16 ranks of A100, 8 in a node, HDR, buckets: 25 MiB: 71% of the communication "
        "is hidden behind backward: 1.9 ms of 6.76 ms are left; 17 all-reduces, the largest of 147 MiB. Each "
        "gradient alone would leave 2.14 ms, one message for all 4.79 ms; best of these: 25 MiB, 1.9 ms.")
    assert (percent(step.hidden), human_seconds(step.exposed_s)) == ("71%", "1.9 ms")


def test_every_combination_has_a_scene_that_json_can_hold_and_a_cap_of_ones_own_joins_the_chart():
    for model in MODELS:
        for on in MACHINES:
            asked = {"bucket_cap_mb": 40, "model": model, "machine": on, "num_ranks": ranks_of(on)[-1]}
            marks = json.loads(json.dumps(BucketOverlap.scene(asked).plain()))["marks"]
            present = [mark["key"] for mark in marks if mark["role"] == "present"]
            assert present == ["40 MiB would expose"]
            assert 4 <= sum(mark["key"].startswith("tick") and mark["kind"] == "line" for mark in marks) <= 14


@pytest.mark.parametrize("wrong, words", [
    ({"bucket_cap_mb": -1}, "bucket_cap_mb=-1"), ({"bucket_cap_mb": 2.5}, "whole number"),
    ({"num_ranks": 1}, "2 or more"), ({"model": []}, "model=.* expected one of"),
    ({"machine": "abacus"}, "machine='abacus': expected one of 'A100, 8 in a node, HDR'"),
    ({"model": None}, "model=None"),
    ({"machine": "laptop, gloo", "num_ranks": 32}, "at most 16 with laptop, gloo"),
    ({"cap": 25}, "no parameter cap"),
])
def test_what_cannot_be_simulated_is_refused_with_the_reason(wrong, words):
    with pytest.raises(BadParameter, match=words):
        BucketOverlap(**wrong)


@pytest.mark.parametrize("cap_mb", [0, 25, 10_000])
def test_the_picture_shows_work_messages_and_waiting(cap_mb):
    (width, height), colours = size_and_colours(to_png(BucketOverlap(bucket_cap_mb=cap_mb).picture()))
    assert width > 900 and height > 400 and colours > 6


@pytest.mark.parametrize("end", [1e-5, 0.0488, 1.0, 99.0])
def test_ticks_are_round_and_cover_the_step(end):
    at = round_ticks(end)
    assert at[0] == 0 and 5 <= len(at) <= 14 and at[-1] <= end < at[-1] + 2 * at[1]
