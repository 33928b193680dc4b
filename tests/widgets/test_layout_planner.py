"""LayoutPlanner shows the planner's own estimate, and the published step where the layout is the published one."""

import pytest

from course_lib.facts import published_rows
from course_lib.pictures.figures import to_png
from course_lib.planner.estimate import estimate_job
from course_lib.planner.rows import in_metric, job_of_row, published_seconds
from course_lib.widgets import LayoutPlanner
from course_lib.widgets.base import BadParameter
from course_lib.widgets.layout_planner import (
    HOWS,
    KINDS,
    LEFT,
    RIGHT,
    RUNS,
    base_of,
    counts_of,
    cuts_of,
    job_of,
    kept,
    planned,
    row_of,
    scene_of,
)
from tests.widgets.pictures import size_and_colours

META, MEGATRON = list(RUNS)[:2]


@pytest.mark.parametrize("run", RUNS)
def test_a_new_widget_shows_the_run_as_it_was_published(run):
    widget, base = LayoutPlanner(run), base_of(run)
    shown = planned(widget.run, widget.devices, widget.cut, widget.how)
    for name in ("layout", "v", "micro_batch", "recompute", "global_batch", "schedule", "sequence_parallel"):
        assert getattr(shown.estimate.job, name) == getattr(base, name), name
    assert shown.estimate.step_s == estimate_job(base).step_s
    row = row_of(run)
    assert in_metric(row, base, shown.published_s) == pytest.approx(row["value"])
    assert [mark.key for mark in scene_of(shown).marks if mark.role == "bound"] == ["published"]


def test_what_a_row_publishes_gives_back_its_value():
    for row in published_rows():
        if not row["metric"].startswith("fits"):
            job = job_of_row(row)
            assert in_metric(row, job, published_seconds(row, job)) == pytest.approx(row["value"]), row["id"]


def test_another_layout_has_no_published_step():
    shown = planned(META, 8192, "tp16,pp16", "ZeRO-2, all kept")
    assert shown.published_s is None and "published" not in shown.detail
    assert not [mark for mark in scene_of(shown).marks if mark.key == "published"]


@pytest.mark.parametrize("how", HOWS)
def test_bars_are_the_estimate(how):
    shown = planned(META, 2048, "tp8,pp16", how)
    marks = {mark.key: mark for mark in scene_of(shown).marks}
    unit = (RIGHT - LEFT) / (1.5 * shown.estimate.job.cluster.usable_bytes)
    held = sum(marks[f"held {kind}"].at[2] for kind in KINDS)
    assert held == pytest.approx(min(RIGHT - LEFT, unit * shown.estimate.memory_bytes), rel=1e-3)
    times = [mark for key, mark in marks.items() if key.startswith("time ")]
    assert sum(mark.at[2] for mark in times) == pytest.approx((RIGHT - LEFT) / 1.08, rel=1e-3)
    for above, below in zip(times, times[1:]):  # each begins where the one above it ends
        assert below.at[0] == pytest.approx(above.at[0] + above.at[2], abs=0.016)  # three numbers to a hundredth


def test_what_does_not_fit_is_said_first():
    shown = planned(META, 1024, "tp8,pp16", "ZeRO-2, all kept")
    assert not shown.estimate.fits and shown.finding.startswith("does not fit: ")
    verdict = next(mark for mark in scene_of(shown).marks if mark.key == "held in all")
    assert verdict.role == "refusal" and verdict.text.startswith("✗")


@pytest.mark.parametrize("run", RUNS)
def test_every_choice_uses_every_device_and_has_a_scene(run):
    for devices in counts_of(run):
        for name, cut in cuts_of(run, devices).items():
            job = job_of(run, devices, *cut, "ZeRO-1, all kept")
            assert job.layout.world_size == devices and job.num_microbatches >= 1
            assert job.num_microbatches * job.micro_batch * job.layout.dp == job.global_batch
            assert kept(run, devices, name) == name
        last = next(reversed(cuts_of(run, devices)))
        assert all(scene_of(planned(run, devices, last, how)).headline for how in HOWS)


def test_another_run_brings_its_published_layout_and_another_number_of_devices_keeps_the_cut_where_it_can():
    controls = {control.label: control for control in LayoutPlanner.list_controls(LayoutPlanner().asked())}
    change = next(choice.change for choice in controls["run"].choices if choice.label == MEGATRON)
    assert change == {"run": MEGATRON, "devices": 1920, "cut": "tp8,pp16", "how": "ZeRO-0, layers made again"}
    assert {choice.change["cut"] for choice in controls["devices"].choices} == {"tp8,pp16"}
    assert kept(META, 16_384, "tp3,pp5") == "tp8,pp16"


def test_what_cannot_be_is_refused_and_the_old_value_stays():
    widget = LayoutPlanner()
    for name, value in (("run", "GPT-5"), ("devices", 8000), ("cut", "tp3,pp5"), ("how", "ZeRO-4")):
        with pytest.raises(BadParameter, match="expected one of"):
            setattr(widget, name, value)
    assert (widget.run, widget.devices, widget.cut, widget.how) == (META, 8192, "tp8,pp16", "ZeRO-2, all kept")


def test_the_picture_has_every_colour():
    (width, height), colours = size_and_colours(to_png(LayoutPlanner().picture()))
    assert width > 900 and height > 300 and colours > 6
