"""PipelineSchedule hands over the schedule that is drawn and marks what is wrong; pictures of schedules."""

from dataclasses import replace

import pytest

from course_lib.pictures.painter import to_png
from course_lib.pipeline_parallel import (
    SCHEDULES,
    Action,
    Schedule,
    findings,
    gpipe,
    interleaved_1f1b,
    measured_under_plan,
    one_f_one_b,
    schedule_picture,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.picture import picture_of
from course_lib.widgets import PipelineSchedule
from course_lib.widgets.pipeline_schedule import RUNS, WAITS, WRONG, comparison, row_of, with_times
from tests.widgets.pictures import scene_with, size_and_colours


def by_hand(*lanes, m=2, **parameters):
    return PipelineSchedule(order="by hand", p=len(lanes), m=m, placed=[lane.split() for lane in lanes], **parameters)


def test_what_is_placed_is_handed_over_as_a_schedule():
    assert replace(by_hand("F0 F1 B0 B1", "F0 B0 F1 B1").schedule, name="1F1B") == one_f_one_b(2, 2)
    assert by_hand("F0 F0.1 B0.1 B0", m=1, stages=[[0, 1]]).schedule.actions[0][1] == Action("F", 0, 1)
    for given in (zb_v(3, 5), gpipe(2, 32), interleaved_1f1b(4, 4, 4)):
        shown = by_hand(*(" ".join(map(str, lane)) for lane in given.actions), m=given.num_microbatches,
                        stages=[list(chunks) for chunks in given.stages])
        assert replace(shown.schedule, name=given.name) == given
        assert shown.frames["headline"].startswith("It runs, ")
    shown.order = "GPipe"
    assert shown.schedule == gpipe(4, 4)


def test_fewer_ranks_or_micro_batches_leave_out_what_does_not_fit_any_more():
    shown = by_hand("F0 F1 B0 B1", "F0 B0 F1 B1")
    shown.m = 1
    assert [" ".join(map(str, lane)) for lane in shown.schedule.actions] == ["F0 B0", "F0 B0"]
    shown.p = 3
    assert shown.schedule.stages == ((0,), (1,), (2,)) and shown.schedule.actions[2] == ()


def test_what_cannot_run_stands_behind_and_what_is_wrong_is_marked():
    shown = by_hand("F0 F1 B0", "F0 W0 F1")
    found = findings(shown.schedule, finished=False)
    simulation = with_times(shown.schedule, shown.slow)
    rows = [row_of(simulation, rank, found) for rank in range(2)]
    assert [[box[-1] for box in row] for row in rows] == [[RUNS, RUNS, WAITS], [RUNS, WRONG, WAITS]]
    ends = [box[1] for row in rows for box in row if box[-1] == RUNS]
    assert all(box[0] > max(ends) for row in rows for box in row if box[-1] != RUNS)
    roles = {mark.key: mark.role for mark in shown.current_scene().marks}
    assert [roles[f"rank 1 {action}"] for action in ("F0", "W0", "F1")] == ["forward", "wrong", "stuck"]


def test_a_complete_schedule_is_compared_with_the_published_ones():
    whole, begun = by_hand("F0 F1 B0 B1", "F0 B0 F1 B1"), by_hand("F0", "")
    rows = comparison(whole.settings(), with_times(whole.schedule, whole.slow))
    assert [name for name, *_, present in rows if present] == ["yours"]
    assert len(comparison(begun.settings(), None)) == len(SCHEDULES)
    for shown, compared in ((whole, True), (begun, False)):
        assert ("yours compared" in {mark.key for mark in shown.current_scene().marks}) == compared


def test_an_action_keeps_its_key_in_another_schedule_so_that_it_can_move_there():
    here, there = ({mark.key: mark.at for mark in scene_with(PipelineSchedule, {"order": order}).marks}
                   for order in ("GPipe", "1F1B"))
    actions = [key for key in here if key.startswith("rank 0 B") and key[-1].isdigit()]
    assert len(actions) == 8 and here.keys() == there.keys() and here["rank 0 B0"] != there["rank 0 B0"]


def test_the_smallest_and_the_largest_schedule_and_one_by_hand_have_a_picture():
    for shown in (PipelineSchedule(order="ZB-V", p=8, m=32), PipelineSchedule(p=1, m=1), by_hand("", ""),
                  by_hand("F0 F1 B0", "F0 W0 F1")):
        (width, height), colours = size_and_colours(to_png(shown.picture()))
        assert width > 900 and height > 250 and colours > 4


def test_schedules_and_simulations_are_drawn_with_a_headline_and_in_one_unit():
    alone, both = schedule_picture(one_f_one_b(4, 8)), schedule_picture(one_f_one_b(4, 8), interleaved_1f1b(4, 8, 2))
    data = alone._repr_mimebundle_()
    assert data["text/plain"].startswith("1F1B, 4 ranks") and data["image/png"][:4] == b"\x89PNG"
    assert picture_of([simulate(zb_h2(4, 8))]).figure().axes[0].get_title(loc="left").endswith(
        "12.5% of the ideal time; 0.0% between a rank's own start and end")
    assert both.headline == "idle: 1F1B 27%, interleaved 1F1B 16%"
    assert [panel.simulation.makespan for panel in both.panels] == [33, 28.5]
    assert both.unit == "time (1: a rank's forward pass of a micro-batch)"
    assert schedule_picture(interleaved_1f1b(4, 8, 2), forward=1).panels[0].simulation.makespan == 57
    assert schedule_picture(one_f_one_b(4, 8), forward=1).unit == "time, in the unit of the costs"
    both = schedule_picture(one_f_one_b(4, 8), zb_h1(4, 8))
    assert repr(both.shows("ZB-H1 is idle less", holds=True)) == f"Schedules: ZB-H1 is idle less ({both!r})"
    assert repr(both.shows("1F1B is", holds=False)).startswith("Schedules: not seen here: 1F1B is (1F1B, 4 ranks")
    empty_rank = Schedule("one", 1, ((0,),), ((Action("F", 0), Action("B", 0)),))
    assert schedule_picture(simulate(empty_rank, 0, 0, 0)).png()[:4] == b"\x89PNG"


def test_a_measured_step_is_drawn_under_its_plan():
    plan, late = (simulate(gpipe(2, 4), forward, 0.01, 0.01) for forward in (0.01, [0.01, 0.02]))
    picture = measured_under_plan(plan, late)
    assert repr(picture) == f"{plan!r}; below it the step as it was measured"
    assert picture.headline == f"planned to be idle 20% of the time, measured {late.bubble_fraction:.0%}"
    assert size_and_colours(picture._repr_mimebundle_()["image/png"])[1] > 4
    with pytest.raises(ValueError, match="the plan is of 'GPipe', 2 ranks and 4 micro-batches, what was measured of"):
        measured_under_plan(plan, simulate(one_f_one_b(2, 4)))
