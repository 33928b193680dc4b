"""One measured step: what was measured is found again, and a cluster's other runs are predicted better for it."""

from dataclasses import fields, replace

import pytest

from course_lib.facts import model, published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import Learned, cluster, estimate, learn
from course_lib.planner.constants import FITTED, MEGATRON_CORE
from course_lib.planner.rates import rates_of
from course_lib.planner.validate import learn_one_step, table_of_steps

H100S = cluster("H100", 64)


def step(layout, constants=FITTED):
    return estimate(model("Llama 3 8B"), cluster("H100", layout.world_size), layout, 256, constants=constants)


def all_reduce_s(constants, num_bytes, ranks=64, stride=1):
    return rates_of(H100S, MEGATRON_CORE, constants=constants).network.group(ranks, stride).seconds(
        "all_reduce", num_bytes)


def moved_most(learned: Learned) -> str:
    return max(learned.moved, key=lambda name: abs(learned.moved[name]))


HALF = replace(FITTED, network=FITTED.network / 2)
PRODUCT = (8192, 8192, 8192, 2 * 8192**3 / 500e12)


@pytest.mark.parametrize("measured, name, least, most", [
    ({"all_reduces": [(1e9, all_reduce_s(HALF, 1e9), 64, 8)]}, "network", 0.475, 0.525),  # a line of nccl-tests
    ({"products": [PRODUCT]}, "matmul_h100", 0, 0.8)])  # slower than the best that was measured
def test_one_message_or_product_moves_its_own_constant(measured, name, least, most):
    learned = learn(H100S, **measured)
    assert moved_most(learned) == name
    assert least < getattr(learned.constants, name) / getattr(FITTED, name) < most
    one, = learned.measured
    assert one.before_s < one.seconds and one.after_s == pytest.approx(one.seconds, rel=0.03)
    if name == "network":
        assert one.before_s < 0.6 * one.seconds
        assert one.before_s == pytest.approx(all_reduce_s(FITTED, 1e9))
    else:
        others = [field.name for field in fields(FITTED) if field.name != name]
        assert all(getattr(learned.constants, other) == pytest.approx(getattr(FITTED, other), rel=0.05)
                   for other in others)


def test_a_slower_step_makes_every_layout_slower_and_two_steps_more_than_one():
    layouts = ParallelLayout(dp=16, tp=4), ParallelLayout(dp=8, tp=4, pp=2)
    found = [step(layout) for layout in layouts]
    other = step(ParallelLayout(dp=32, tp=2))
    once, twice = (learn(H100S, steps=[(each, 1.3 * each.step_s) for each in some]) for some in (found[:1], found))
    after = [step(other.layout, each.constants).step_s for each in (once, twice)]
    assert other.step_s < after[0] < after[1] < 1.3 * other.step_s


def test_what_is_learned_is_surer_and_told_with_the_error_before_and_after_and_a_step_as_predicted_moves_nothing():
    found = step(ParallelLayout(dp=16, tp=4))
    learned, nothing = (learn(H100S, steps=[(found.job, times * found.step_s)]) for times in (1.3, 1))
    lines = str(learned).splitlines()
    assert lines[0].startswith("a step of Llama 3 8B on 64 H100, tp4") and "-23% off before" in lines[0]
    assert lines[1].split()[0] == moved_most(learned) and lines[1].endswith("uncertainties")
    assert learned.uncertainty["matmul_h100"] < 0.112  # hypot(0.05, 0.2 / 2)
    assert all(abs(moved) < 0.01 for moved in nothing.moved.values()) and str(nothing).count("\n") == 0


@pytest.mark.sweep(words="17 fits of the constants")
def test_most_clusters_other_runs_are_predicted_better_for_one_that_was_learned():
    """Each as a new reader meets it: constants fitted without its source, no profile of its own. Where the planner was
    right within a tenth there is little to learn, and it stays so.
    """
    found = learn_one_step(published_rows())
    print(table_of_steps(found))
    missed, near = [each for each in found if each.before > 0.1], [each for each in found if each.before <= 0.1]
    assert len(found) >= 15 and len(missed) >= 8
    assert sum(each.after < each.before for each in missed) >= 0.75 * len(missed)
    assert sum(each.after < each.before for each in found) >= 0.7 * len(found)
    assert max(each.after for each in near) < 0.1
    assert sum(each.after for each in found) < 0.88 * sum(each.before for each in found)


@pytest.mark.parametrize("measured, told", [
    ({}, "nothing was measured"), ({"products": [(8, 8, 0, 1.0)]}, "n=0"),
    ({"products": [(8, 8, 8, 0.0)]}, "measured seconds"),
    ({"all_reduces": [(0, 1.0, 64, 8)]}, "bytes of an all-reduce"),
    ({"all_reduces": [(1e9, 1.0, 8, 1)]}, "8 ranks on 1 nodes: expected two nodes or more"),
    ({"all_reduces": [(1e9, 1.0, 20, 8)]}, "divides its 8 devices"),
    ({"steps": [(estimate(model("Llama 3 8B"), cluster("A100", 8), ParallelLayout(tp=8), 8), 1.0)]},
     "a step on A100 tells nothing of H100")])
def test_a_measurement_that_tells_nothing_is_refused(measured, told):
    with pytest.raises(ValueError, match=told):
        learn(H100S, **measured)
