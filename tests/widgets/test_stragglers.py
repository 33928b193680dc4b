"""Stragglers says what the simulation found, and refuses what it cannot show."""

import json

import pytest

from course_lib.costs.stragglers import WHO
from course_lib.pictures.figures import to_png
from course_lib.widgets import Stragglers
from course_lib.widgets.base import BadParameter
from course_lib.widgets.stragglers import RIGHT
from tests.widgets.pictures import size_and_colours

RANDOM = WHO[1]
NEVER_LATE = [("synchronous", 0), ("local", 0), ("local", 4), ("asynchronous", 0), ("asynchronous", 4),
              ("asynchronous", None)]
BY_SCHEME = pytest.mark.parametrize("scheme, slack", NEVER_LATE)


def test_the_widget_says_what_the_simulation_found():
    assert repr(Stragglers()) == (
        "Stragglers, synchronous, rank 1 takes 3 times as long: 3.1 of 6.8 possible steps/s per rank: ranks wait 46% "
        "of their time, gradients never stale. Every step ends when its slowest rank has done it, and all the "
        "others wait.")
    assert "it grew to 640 steps" in repr(Stragglers(scheme="asynchronous", slack=None))
    assert "in the long run all go at rank 1's pace" in repr(Stragglers(scheme="asynchronous"))
    assert "hiccups even out" in repr(Stragglers(scheme="local", who=RANDOM))


@BY_SCHEME
def test_a_scene_can_be_json_its_lanes_end_with_the_horizon_and_it_marks_what_is_shown(scheme, slack):
    marks = json.loads(json.dumps(Stragglers.scene({"scheme": scheme, "slack": slack}).plain()))["marks"]
    for rank in range(4):
        last = [mark["at"] for mark in marks if mark["key"].startswith(f"rank {rank} span ")][-1]
        assert last[0] + last[2] == pytest.approx(RIGHT, abs=0.02)
    assert [mark["role"] for mark in marks].count("present") == 1


@pytest.mark.parametrize("wrong, words", [
    ({"scheme": "gossip"}, "scheme='gossip'"), ({"who": []}, "who="), ({"slowdown": 0}, "from 1 to 10"),
    ({"slack": 33}, "slack=33: expected a whole number from 0 to 32"), ({"slack": 1.5}, "slack=1.5"),
    ({"slack": True}, "slack=True"), ({"scheme": "local", "slack": None}, "slack=None"),
])
def test_what_the_widget_cannot_show_is_refused_with_the_reason(wrong, words):
    with pytest.raises(BadParameter, match=words):
        Stragglers(**wrong)


@BY_SCHEME
def test_the_picture_shows_all_that_ranks_do(scheme, slack):
    (width, height), colours = size_and_colours(to_png(Stragglers(scheme=scheme, slack=slack).picture()))
    assert width > 900 and height > 400 and colours > 6
