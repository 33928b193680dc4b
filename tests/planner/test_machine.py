"""A measured machine's prediction: what follows from made-up measurements, and that measuring gives some."""

from dataclasses import replace

import pytest

from course_lib.costs.links import Link
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.machine import Machine, MeasuredRank, layer_seconds, measure, pass_seconds_per_byte
from course_lib.reference import GPTConfig

CONFIG = GPTConfig(num_layers=4, hidden_size=128, num_heads=4, sequence_length=64)
ALONE = MeasuredRank(2, 4e10, 1e10, 3e-10, 3e-4, 2e-3, Link(1e-4, 1e-9), 1e-3)
CROWDED = replace(ALONE, num_busy=4, flops_per_s=2e10, bytes_per_s=5e9, pass_s_per_byte=6e-10, launch_s=6e-4,
                  call_s=3e-3)
MACHINE = Machine(4, 2, ALONE, CROWDED)


@pytest.mark.parametrize("text", ["dp4", "dp2,tp2", "tp4", "pp4", "dp2,pp2", "cp4", "dp4,zero1", "dp4,zero3", "pp2"])
def test_every_layout_has_a_step_whose_causes_add_up(text):
    found = MACHINE.estimate(CONFIG, ParallelLayout.from_string(text), 16, 4)
    assert found.step_s == pytest.approx(sum(found.seconds.values())) and min(found.seconds.values()) >= 0


def test_a_model_that_was_disturbed_gives_no_negative_rate_and_shared_cores_fill_the_bubble():
    assert layer_seconds(0.01, 0.03, 2) == pytest.approx(0.01)  # faster than a smaller one
    assert pass_seconds_per_byte(layer_seconds(0.02, 0.019, 2), P=1e11, W=1e10, launch_s=1e-4) > 0
    shared, own = (replace(MACHINE, num_cores=n).estimate(CONFIG, ParallelLayout(pp=4), 16, 4) for n in (2, 4))
    assert own.bubble > 0.3 and shared.step_s >= own.step_s


def test_a_machine_twice_as_fast_takes_half_as_long():
    twice = replace(ALONE, flops_per_s=2 * ALONE.flops_per_s, bytes_per_s=2 * ALONE.bytes_per_s,
                    pass_s_per_byte=ALONE.pass_s_per_byte / 2, launch_s=ALONE.launch_s / 2)
    slow, fast = (replace(MACHINE, free=each).estimate(CONFIG, ParallelLayout(), 16) for each in (ALONE, twice))
    for cause in ("matmul", "launch"):
        assert fast.seconds[cause] == pytest.approx(slow.seconds[cause] / 2)


def test_each_message_waits_for_its_ranks_and_for_fewer_of_them_less_long():
    layouts = {text: ParallelLayout.from_string(text) for text in ("tp4", "dp2,tp2", "cp4", "dp4", "pp4")}
    at_once = replace(MACHINE, free=replace(ALONE, call_s=0.0), crowded=replace(CROWDED, call_s=0.0))
    waits = {text: MACHINE.estimate(CONFIG, layout, 16).step_s - at_once.estimate(CONFIG, layout, 16).step_s
             for text, layout in layouts.items()}
    ends, agreed = 1 + 1.5, 2
    assert waits["tp4"] == pytest.approx((4 * 4 + 2 * ends + agreed) * 3e-3)  # four in each of four layers
    assert waits["dp2,tp2"] == pytest.approx((4 * 4 + 2 * ends) * 1.5e-3 + agreed * 3e-3)
    assert waits["cp4"] == pytest.approx((4 * 3 * 3 + agreed) * 3e-3)  # three hops, and backward two messages each
    assert waits["dp4"] == pytest.approx(agreed * 3e-3)


@pytest.mark.ci
def test_measuring_this_machine_gives_speeds_above_zero():
    found = measure(2)
    for of in (found.free, found.crowded):
        assert min(of.flops_per_s, of.bytes_per_s, of.pass_s_per_byte, of.launch_s) > 0
        assert min(of.link.beta_s_per_byte, of.link.alpha_s, of.call_s, of.step_s) >= 0
    assert found.estimate(CONFIG, ParallelLayout(dp=2), 8).step_s > 0
