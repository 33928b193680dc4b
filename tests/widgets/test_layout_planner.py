"""LayoutPlanner shows the planner's own estimate, and the published step where the layout is the published one."""

from dataclasses import replace

import pytest

from course_lib.facts import published_rows
from course_lib.planner.estimate import estimate_job
from course_lib.planner.rows import in_metric, job_of_row, published_seconds
from course_lib.widgets import LayoutPlanner
from course_lib.widgets.layout_planner import (
    HOWS,
    RUNS,
    base_of,
    counts_of,
    cuts_of,
    estimate_layout,
    job_of,
    nearest_cut,
    opening_of,
    row_of,
    scene_of,
)

META = next(iter(RUNS))


def shown_by(widget):
    return estimate_layout(widget.run, widget.devices, widget.cut, widget.how)


@pytest.mark.parametrize("run", RUNS)
def test_a_new_widget_shows_the_run_as_it_was_published(run):
    shown, base, row = shown_by(LayoutPlanner(**opening_of(run))), base_of(run), row_of(run)
    for name in ("layout", "v", "micro_batch", "recompute", "global_batch", "schedule", "sequence_parallel"):
        assert getattr(shown.estimate.job, name) == getattr(base, name), name
    assert shown.estimate.step_s == estimate_job(base).step_s
    assert in_metric(row, base, shown.published_s) == pytest.approx(row["value"])
    assert [mark.key for mark in LayoutPlanner(**opening_of(run)).current_scene().marks
            if mark.role == "bound"] == ["published"]


def test_what_a_row_publishes_gives_back_its_value():
    for row in published_rows():
        if not row["metric"].startswith("fits"):
            job = job_of_row(row)
            assert in_metric(row, job, published_seconds(row, job)) == pytest.approx(row["value"]), row["id"]


def test_a_prediction_is_never_minus_nothing_off_and_what_does_not_fit_is_said_first():
    shown = shown_by(LayoutPlanner())
    assert ", predicted +0%" in replace(shown, published_s=1.001 * shown.estimate.step_s).detail
    shown = estimate_layout(META, 1024, "tp8,pp16", "ZeRO-2, all kept")
    assert not shown.estimate.fits and shown.finding.startswith("Does not fit: ")


@pytest.mark.sweep("run", few=[*RUNS][:2], all=[*RUNS], words=f"every choice for 2 runs of {len(RUNS)}")
def test_every_choice_uses_every_device_and_has_a_scene(run):
    for devices in counts_of(run):
        for name, cut in cuts_of(run, devices).items():
            job = job_of(run, devices, *cut, "ZeRO-1, all kept")
            assert job.layout.world_size == devices and job.num_microbatches >= 1
            assert job.num_microbatches * job.micro_batch * job.layout.dp == job.global_batch
            assert nearest_cut(run, devices, name) == name
        last = next(reversed(cuts_of(run, devices)))
        assert all(scene_of(run=run, devices=devices, cut=last, how=how).headline for how in HOWS)


def test_another_number_of_devices_keeps_the_cut_where_it_can():
    controls = {control.label: control for control in LayoutPlanner.list_controls(LayoutPlanner().settings())}
    assert {choice.change["cut"] for choice in controls["devices"].choices} == {"tp8,pp16"}
    assert nearest_cut(META, 16_384, "tp3,pp5") == "tp8,pp16"
