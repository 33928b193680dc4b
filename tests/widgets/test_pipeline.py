"""PipelineSchedule and the pictures of schedules: they say what the simulation found, and hand over what is drawn."""

from dataclasses import replace
from fractions import Fraction

import pytest

from course_lib.costs import bubbles
from course_lib.pictures.figures import to_png
from course_lib.pipeline_parallel import (
    Action,
    Schedule,
    findings,
    gpipe,
    interleaved_1f1b,
    measured_under_plan,
    one_f_one_b,
    schedule_picture,
    simulate,
    validate,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.picture import picture_of
from course_lib.widgets import PipelineSchedule
from course_lib.widgets.base import BadParameter
from course_lib.widgets.pipeline_scene import RUNS, WAITS, WRONG, row_of
from course_lib.widgets.pipeline_schedule import ORDERS, all_orders, comparison, with_times
from tests.widgets.pictures import size_and_colours


@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (8, 16)])
def test_the_idle_shares_are_the_formulas_whatever_v_divides_the_layers_into(p, m):
    idle = {name: share for name, share, _ in all_orders(p, m, 2, None, (1, 1, 1))}
    assert idle["naive"] == bubbles.naive_bubble(p)
    assert idle["GPipe"] == idle["1F1B"] == bubbles.bubble_of_total(p, m)
    assert idle["interleaved 1F1B"] == bubbles.bubble_of_total(p, m, 2)
    assert idle["ZB-H1"] == bubbles.zb_h1_bubble(p, m)
    assert idle["ZB-V"] < idle["ZB-H2"] < idle["1F1B"]


def test_memory_is_told_in_micro_batches_of_a_whole_rank():
    peaks = {name: peak for name, _, peak in all_orders(4, 8, 2, None, (1, 1, 1))}
    assert peaks == {"naive": "1", "GPipe": "8", "1F1B": "4", "interleaved 1F1B": "5.5", "ZB-H1": "4", "ZB-H2": "7",
                     "ZB-V": "4", "DualPipe-V": "4.5"}


def simulation_of(widget):
    return with_times(widget.schedule, widget.slow, widget.costs)


def test_a_slow_rank_and_other_costs_are_simulated():
    slow = simulation_of(PipelineSchedule(p=2, m=4, slow=1, costs=(1, 2, 0)))
    assert slow.makespan == simulate(one_f_one_b(2, 4), [1, 2], [2, 4], 0).makespan
    shared = simulation_of(PipelineSchedule(order="interleaved 1F1B", v=3, p=2, m=4))
    third = Fraction(1, 3)
    assert shared.makespan == simulate(interleaved_1f1b(2, 4, 3), third, third, third).makespan


def by_hand(*lanes, m=2, **parameters):
    return PipelineSchedule(order="by hand", p=len(lanes), m=m, placed=[lane.split() for lane in lanes], **parameters)


def test_what_is_placed_by_hand_is_handed_over_as_a_schedule():
    schedule = by_hand("F0 F1 B0 B1", "F0 B0 F1 B1").schedule
    assert replace(schedule, name="1F1B") == one_f_one_b(2, 2)
    chunks = by_hand("F0 F0.1 B0.1 B0", m=1, stages=[[0, 1]]).schedule
    validate(chunks)
    assert chunks.actions[0][1] == Action("F", 0, 1)


def test_a_schedule_given_to_the_widget_comes_out_as_it_was():
    shown = PipelineSchedule()
    for given in (zb_v(3, 5), gpipe(2, 32), interleaved_1f1b(4, 4, 4)):
        shown.schedule = given
        assert replace(shown.schedule, name=given.name) == given
        assert shown.frames["headline"].startswith("It runs, ")
    shown.order = "GPipe"
    assert shown.schedule == gpipe(4, 4)
    with pytest.raises(BadParameter, match="p=9: expected a whole number from 1 to 8"):
        shown.schedule = gpipe(9, 2)
    with pytest.raises(BadParameter, match="expected a Schedule"):
        shown.schedule = "GPipe"


def test_fewer_ranks_or_micro_batches_leave_out_what_does_not_fit_any_more():
    shown = by_hand("F0 F1 B0 B1", "F0 B0 F1 B1")
    shown.m = 1
    assert [" ".join(map(str, lane)) for lane in shown.schedule.actions] == ["F0 B0", "F0 B0"]
    shown.p = 3
    assert shown.schedule.stages == ((0,), (1,), (2,)) and shown.schedule.actions[2] == ()


def test_what_cannot_run_stands_behind_and_what_is_wrong_is_marked():
    shown = by_hand("F0 F1 B0", "F0 W0 F1")
    found = findings(shown.schedule, finished=False)
    rows = [row_of(simulation_of(shown), rank, found) for rank in range(2)]
    assert [box[-1] for box in rows[0]] == [RUNS, RUNS, WAITS]
    assert [box[-1] for box in rows[1]] == [RUNS, WRONG, WAITS]
    ends = [box[1] for row in rows for box in row if box[-1] == RUNS]
    assert all(box[0] > max(ends) for row in rows for box in row if box[-1] != RUNS)
    roles = {mark.key: mark.role for mark in shown.current_scene().marks}
    assert [roles[f"rank 1 {action}"] for action in ("F0", "W0", "F1")] == ["forward", "wrong", "stuck"]


def test_a_complete_schedule_is_compared_with_the_published_ones():
    whole, begun = by_hand("F0 F1 B0 B1", "F0 B0 F1 B1"), by_hand("F0", "")
    rows = comparison(whole.settings(), simulation_of(whole))
    assert [(name, present) for name, *_, present in rows if present] == [("yours", True)]
    assert len(comparison(begun.settings(), None)) == len(ORDERS)
    assert "yours compared" in {mark.key for mark in whole.current_scene().marks}
    assert "yours compared" not in {mark.key for mark in begun.current_scene().marks}


def test_an_action_keeps_its_key_in_another_schedule_so_that_it_can_move_there():
    here, there = ({mark.key: mark.at for mark in PipelineSchedule.scene({"order": order}).marks}
                   for order in ("GPipe", "1F1B"))
    actions = [key for key in here if key.startswith("rank 0 B") and key[-1].isdigit()]
    assert len(actions) == 8 and here.keys() == there.keys() and here["rank 0 B0"] != there["rank 0 B0"]


def test_the_smallest_and_the_largest_schedule_and_one_by_hand_have_a_picture():
    for shown in (PipelineSchedule(order="ZB-V", p=8, m=32), PipelineSchedule(p=1, m=1), by_hand("", ""),
                  by_hand("F0 F1 B0", "F0 W0 F1")):
        (width, height), colours = size_and_colours(to_png(shown.picture()))
        assert width > 900 and height > 250 and colours > 4


def test_a_simulation_draws_itself():
    alone = simulate(one_f_one_b(4, 8))
    data = alone._repr_mimebundle_()
    assert data["text/plain"].startswith("1F1B, 4 ranks") and data["image/png"] == picture_of([alone]).png()
    (axes,) = picture_of([simulate(zb_h2(4, 8))]).figure().axes
    assert axes.get_title(loc="left").endswith("12.5% of the ideal time; 0.0% between a rank's own start and end")


def test_schedules_with_and_without_chunks_are_drawn_in_the_same_unit():
    both = schedule_picture(one_f_one_b(4, 8), interleaved_1f1b(4, 8, 2))
    assert both.headline == "idle: 1F1B 27%, interleaved 1F1B 16%"
    assert [panel.simulation.makespan for panel in both.panels] == [33, 28.5]
    assert both.unit == "time (1: a rank's forward pass of a micro-batch)"
    assert schedule_picture(interleaved_1f1b(4, 8, 2), forward=1).panels[0].simulation.makespan == 57
    assert schedule_picture(one_f_one_b(4, 8), forward=1).unit == "time, in the unit of the costs"


def test_a_headline_over_schedules_says_whether_they_show_it():
    both = schedule_picture(one_f_one_b(4, 8), zb_h1(4, 8))
    assert repr(both.shows("ZB-H1 is idle less", holds=True)) == f"Schedules: ZB-H1 is idle less ({both!r})"
    assert repr(both.shows("1F1B is", holds=False)).startswith("Schedules: not seen here: 1F1B is (1F1B, 4 ranks")


def test_a_measured_step_is_drawn_under_its_plan():
    plan = simulate(gpipe(2, 4), 0.01, 0.01, 0.01)
    late = simulate(gpipe(2, 4), [0.01, 0.02], 0.01, 0.01)
    picture = measured_under_plan(plan, late)
    assert repr(picture) == f"{plan!r}; below it the step as it was measured"
    assert picture.headline == f"planned to be idle 20% of the time, measured {late.bubble_fraction:.0%}"
    assert size_and_colours(picture._repr_mimebundle_()["image/png"])[1] > 4
    with pytest.raises(ValueError, match="the plan is of 'GPipe', 2 ranks and 4 micro-batches, what was measured of"):
        measured_under_plan(plan, simulate(one_f_one_b(2, 4)))


def test_an_empty_rank_is_drawn_too():
    lanes = (tuple(Action(kind, 0) for kind in "FB"),)
    assert simulate(Schedule("one", 1, ((0,),), lanes), 0, 0, 0).png()[:4] == b"\x89PNG"
