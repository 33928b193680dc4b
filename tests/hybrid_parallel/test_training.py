"""Under any layout: the losses, gradients and parameters of one process."""

import pytest

from course_lib.hybrid_parallel import ParallelLayout
from course_lib.runtime import launch
from tests.hybrid_parallel.cases import alone, off, off_by_name, together

SP, M2, M3 = {"sequence_parallel": True}, {"num_microbatches": 2}, {"num_microbatches": 3}
ZB_V, INTERLEAVED, GPIPE = ({"schedule": name, "num_microbatches": 2} for name in ("zb-v", "interleaved", "gpipe"))
MOE, STEERED = {"experts": 4}, {"experts": 4, "balance": 0.01}

CASES = [  # layout, options of parallelize, the model
    # one process, and every axis alone
    ("dp1", M3, {}), ("dp2", {}, {}), ("dp3", {}, {}), ("tp2", {}, {}), ("tp2", SP, {}), ("tp4", SP, {}),
    ("cp2", {}, {}), ("cp4", {}, {}), ("pp2", M3, {}), ("pp3", M2, {}), ("pp2", ZB_V, {}), ("pp2", INTERLEAVED, {}),
    ("dp2,ep2", {}, STEERED), ("dp3,zero1", {}, {}), ("dp2,zero2", M3, {}), ("dp3,zero3", M2, {}),
    # every pair
    ("dp2,tp2", SP, {}), ("dp2,cp2", {}, {}), ("dp2,pp2", M3, {}), ("cp2,tp2", SP, {}), ("pp2,tp2", SP | ZB_V, {}),
    ("pp2,cp2", ZB_V, {}), ("cp2,ep2", {}, STEERED), ("dp2,tp2,ep2", SP, STEERED), ("dp2,pp2,ep2", ZB_V, MOE),
    # with ZeRO
    ("dp2,pp2,zero1", M3, {}), ("dp2,pp2,zero2", ZB_V, {}), ("dp2,pp2,zero3", INTERLEAVED, {}),
    ("dp2,pp2,zero3", M3, {}), ("dp2,cp2,zero2", {}, {}), ("cp2,tp2,zero3", SP, {}), ("dp2,tp2,zero1", {}, {}),
    ("dp4,ep2,zero2", {}, STEERED), ("dp2,cp2,ep2,zero1", {}, MOE),
    # three axes and more
    ("dp2,pp2,tp2", M2, {}), ("dp2,pp2,tp2,zero2", SP | ZB_V, {}), ("pp2,cp2,tp2", GPIPE, {}),
    ("dp2,cp2,tp2,ep2,zero1", SP, STEERED),
]
WORLD_SIZES = sorted({ParallelLayout.from_string(text).world_size for text, _, _ in CASES})


def cases_of(world_size):
    return [case for case in CASES if ParallelLayout.from_string(case[0]).world_size == world_size]


def all_of(cases, steps):
    return [together(text, options, steps, **model) for text, options, model in cases]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.sweep("steps", few=[6], all=[20], words="6 steps of 20, under each layout")
def test_steps_under_any_layout_are_those_of_one_process(world_size, steps):
    cases = cases_of(world_size)
    found = launch(all_of, cases, steps, world_size=world_size, timeout=150)
    for (text, options, model), (losses, norms, first, final) in zip(cases, found[0]):
        expected_losses, expected_norms, expected_first, expected_final = alone(steps, **model)
        told = f"{text} {options} {model}"
        assert off(losses, expected_losses) < 1e-4, told
        assert off_by_name(first, expected_first) < 1e-5, told
        assert off(norms, expected_norms) < 1e-4, told
        assert off_by_name(final, expected_final) < 1e-3, told
    assert all([of_rank[0] for of_rank in rank] == [of_rank[0] for of_rank in found[0]] for rank in found)


def test_at_least_thirty_layouts_are_tried_with_every_axis_every_pair_and_every_stage():
    layouts = [ParallelLayout.from_string(text) for text, _, _ in CASES]
    assert len(CASES) >= 30
    axes = ("dp", "pp", "cp", "tp", "ep")
    together_in = [{axis for axis in axes if layout.size(axis) > 1} for layout in layouts]
    assert all(any({a, b} <= some for some in together_in) for a in axes for b in axes)
    assert {layout.zero_stage for layout in layouts} == {0, 1, 2, 3}
