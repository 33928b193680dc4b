"""Why a layout is no plan, and that what is said to help does."""

import re
from dataclasses import replace

import pytest

from course_lib.facts import model
from course_lib.planner.candidates import Asked, Choices
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import MEGATRON_CORE
from course_lib.planner.estimate import estimate_job
from course_lib.planner.plan import find_nearly_better, layout_problem, plan, remedies, why_not
from course_lib.planner.search import ties

LLAMA, MIDDLE = model("Llama 3 405B"), model("Llama 3 70B")
NODES = cluster("H100", 64)
HOW = {"precision": "bf16", "gradient_bytes": 4, "flash": True, "software": MEGATRON_CORE, "sequence_parallel": True}
ASKED = Asked(MIDDLE.shape, NODES, 256, 8192, HOW)


@pytest.mark.parametrize("layout, how, told", [
    ("dp2,pp8,tp4", {"v": 3}, "pp=8 with v=3: expected"),
    ("dp2,pp8,tp4", {"v": 2, "micro_batch": 32}, "v=2 with 4 micro-batches: expected a multiple of pp=8"),
    ("dp4,tp16,pp2", {}, "128 ranks: expected at most the cluster's 64 devices"),
    ("dp2,pp7,tp4", {}, "pp=7"),
    ("tp5", {}, "tp=5"),
    ("dp3,tp8", {}, "expected a multiple of dp x micro_batch = 3"),
    ("cp3,tp4", {}, "cp=3"),
])
def test_what_cannot_be_built_is_told_with_the_number_that_is_wrong(layout, how, told):
    found = why_not(MIDDLE, NODES, layout, 256, **how)
    assert found.verdict == "cannot be built" and told in found.reasons[0] and found.estimate is None


def test_too_large_is_told_in_gib_with_what_would_help_and_one_layer_less_would_not():
    found = why_not(MIDDLE, NODES, "dp2,pp8,tp4", 256)
    assert str(found).startswith("dp2,pp8,tp4: does not fit") and "what would help: " in str(found)
    over = float(re.search(r"([\d.]+) GiB too much", found.reasons[0])[1])
    assert over == pytest.approx(found.estimate.memory_bytes / 2**30 - 0.9 * NODES.usable_bytes / 2**30, abs=0.06)
    assert "ZeRO-1" in found.remedies and "tp8,dp1" in found.remedies
    number = int(re.fullmatch(r"recompute (\d) of 10 layers of each stage", found.remedies[0])[1])
    for layers, verdict in ((number - 1, "does not fit"), (number, "slower")):
        again = why_not(MIDDLE, NODES, "dp2,pp8,tp4", 256, micro_batch=1, v=1, recompute="full",
                        recompute_layers=layers)
        assert again.verdict == verdict, layers


@pytest.mark.parametrize("layout", ["dp2,pp8,tp4", "dp8,tp8", "dp4,pp4,tp4,zero1"])
def test_what_is_said_to_help_helps(layout):
    found = why_not(MIDDLE, NODES, layout, 256)
    tried = dict(remedies(found.estimate.job, ASKED))
    assert found.remedies
    for job in map(tried.get, found.remedies):
        there = Asked(MIDDLE.shape, job.cluster, 256, 8192, HOW)
        assert layout_problem(there, job.layout, job.micro_batch, job.v) is None
        assert estimate_job(job).memory_bytes <= 0.9 * job.cluster.usable_bytes


def test_slower_is_told_with_its_causes_and_the_best_and_its_ties_as_such():
    first, *others = ties(plan(MIDDLE, NODES, 256))
    found = why_not(MIDDLE, NODES, "dp2,pp8,tp4,zero1", 256, v=1)
    assert found.verdict == "slower" and found.estimate.step_s > first.step_s
    assert str(first.layout) in found.reasons[0] and any(each.startswith("the bubble +") for each in found.reasons)
    other = next(each for each in others if each.layout != first.layout)
    assert why_not(MIDDLE, NODES, first.layout, 256).verdict == "the best"
    assert why_not(MIDDLE, NODES, other.layout, 256).verdict == "a tie with the best"


def test_a_layout_that_would_be_faster_and_nearly_fits_is_told_as_that():
    """With one chunk it fits, with ten, which take longer to fill, it nearly does."""
    layout = "dp2,pp8,tp4,zero2"
    one, ten = (why_not(MIDDLE, NODES, layout, 256, micro_batch=1, v=v, room=1.0).estimate for v in (1, 10))
    assert ten.step_s < one.step_s and ten.memory_bytes > one.memory_bytes
    room = (one.memory_bytes + ten.memory_bytes) / 2 / NODES.usable_bytes
    told = find_nearly_better(one, [ten], replace(ASKED, room=room))
    assert len(told) == 1 and f"with micro-batch 1 and v 10 it would take {ten.step_s:.3g} s" in told[0]
    assert find_nearly_better(ten, [one], replace(ASKED, room=room)) == []


def test_where_nothing_alone_helps_more_devices_are_named_and_an_empty_plan_says_why():
    assert why_not(LLAMA, NODES, "pp8,tp8", 64).remedies == ("128 devices in another layout",)
    found = plan(LLAMA, NODES, 64)
    assert found == [] and found.idle_devices == 64 and plan(LLAMA, cluster("H100", 128), 64)
    assert re.search(r"takes 1[\d.,]+ of .* GiB.*; 128 devices would do", found.reason)
    with pytest.raises(IndexError, match="GiB"):
        found[0]
    nothing = plan(MIDDLE, NODES, 256, choices=Choices(tensor=(5,)))
    assert nothing == [] and "divides the model's 80 layers" in nothing.reason
