"""What holds for every estimate, whatever the constants are."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course_lib.costs.flops import step_flops
from course_lib.costs.scaling import balanced_layers
from course_lib.facts import Shape, accelerator, model
from course_lib.facts.fact import Fact
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.constants import MEGATRON_DEEPSPEED, SOFTWARE
from course_lib.planner.estimate import CAUSES, Estimate, estimate, estimate_job

SHAPE = Shape(32, 4096, 32, 8, 14_336, 128_256, 8192, gated=True)
EXPERTS = replace(SHAPE, ffn_size=2048, num_experts=16, active_experts=2)


@st.composite
def estimates(draw) -> Estimate:
    tp, pp, cp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4, 8, 16), (1, 2, 4, 8), (1, 2, 4)))
    dp, m = draw(st.sampled_from((1, 2, 8))), draw(st.sampled_from((8, 16, 32)))
    shape = draw(st.sampled_from((SHAPE, EXPERTS)))
    ep = draw(st.sampled_from([e for e in (1, 2, 4) if dp * cp % e == 0])) if shape is EXPERTS else 1
    micro_batch = draw(st.sampled_from((1, 2)))
    layout = ParallelLayout(dp=dp, pp=pp, cp=cp, tp=tp, ep=ep, etp=tp if shape is EXPERTS else 1,
                            zero_stage=draw(st.sampled_from((0, 1, 2, 3))))
    return estimate(
        shape, cluster(draw(st.sampled_from(("A100", "H100", "H200", "B200", "H100 96GB 500W"))), layout.world_size),
        layout, dp * m * micro_batch, micro_batch, v=draw(st.sampled_from((1, 2))) if pp > 1 else 1,
        schedule=draw(st.sampled_from(("1F1B", "GPipe", "ZB-H1", "ZB-H2"))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))), gradient_bytes=draw(st.sampled_from((2, 4))),
        sequence_parallel=tp > 1 and draw(st.booleans()), flash=draw(st.booleans()), dropout=draw(st.booleans()),
        software=draw(st.sampled_from(SOFTWARE)))


def again(found: Estimate, **changes) -> Estimate:
    """The same job, but for `changes` of it."""
    return estimate_job(replace(found.job, **changes))


def test_experts_are_dealt_out_whole_or_cut_and_all_wait_for_the_fullest():
    """Whole (etp 1) they are fewer on each rank, and nobody gathers the rows of others: the same numbers, less time."""
    whole, cut = (estimate(EXPERTS, cluster("H100", 16), ParallelLayout(dp=2, tp=8, ep=16 // etp, etp=etp), 8)
                  for etp in (1, 8))
    assert whole.memory["parameters"] == pytest.approx(cut.memory["parameters"])
    assert whole.seconds["ep"] < cut.seconds["ep"] and whole.seconds["matmul"] < cut.seconds["matmul"]
    even = estimate(EXPERTS, cluster("H100", 8), ParallelLayout(dp=8, ep=8), 8)
    uneven = again(even, expert_imbalance=2.0)
    assert uneven.seconds["ep"] > 1.8 * even.seconds["ep"] and uneven.seconds["matmul"] > even.seconds["matmul"]
    assert uneven.memory["activations"] > even.memory["activations"]


def test_chunks_are_whole_unless_layers_are_dealt_out_by_hand():
    how = model("Llama 3 70B").shape, cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256
    with pytest.raises(ValueError, match="pp=8 with v=8: expected chunks that divide the 80 layers.*1.25 layers"):
        estimate(*how, v=8)
    assert estimate(*how, v=5).step_s > 0 and estimate(*how, v=8, uneven=True).step_s > 0


def test_a_v100_has_neither_bf16_nor_flash_attention():
    found = estimate(SHAPE, cluster("V100", 8), ParallelLayout(tp=8), 8)
    assert found.job.precision == "fp16" and not found.job.flash


@settings(max_examples=150)
@given(estimates())
def test_causes_and_kinds_add_up_none_is_of_an_axis_of_one_rank_and_no_step_is_faster_than_the_roofline(found):
    """Of products alone, at the peak of the data sheet; a causal mask spares half of attention."""
    job, seconds, layout = found.job, found.seconds, found.layout
    assert tuple(seconds) == CAUSES and min(seconds.values()) >= 0 and min(found.memory.values()) >= 0
    assert sum(seconds.values()) == found.step_s and sum(found.memory.values()) == found.memory_bytes
    low, high = found.step_range_s or (0.9 * found.step_s, 1.1 * found.step_s)  # none where no run is like it
    assert 0 < low < found.step_s < high and (found.uncertainty or 0.1) < 1
    assert (seconds["tp"] == 0) == (layout.tp == 1) and (seconds["ep"] == 0) == (layout.ep * layout.etp == 1)
    assert (seconds["cp"] == 0) >= (layout.cp == 1) and (seconds["dp"] == 0) >= (layout.dp * layout.cp == 1)
    assert (seconds["pp"] == seconds["bubble"] == 0) >= (layout.pp == 1)
    attention = 12 * job.sequence_length * job.shape.num_heads * job.shape.d * job.shape.num_layers * job.tokens
    needed = step_flops(job.shape, job.global_batch, job.sequence_length) - attention / 2
    assert found.step_s >= needed / found.num_devices / job.cluster.peak_flops_per_s() and found.mfu > 0


WAITS = ParallelLayout(dp=8, pp=4, cp=4, tp=4, zero_stage=3)  # for launches, in F, I and W alike, in a zero bubble


@settings(max_examples=100)
@given(estimates(), st.floats(1.1, 10))
@example(estimate(SHAPE, cluster("A100", 512), WAITS, 64, schedule="ZB-H1", flash=False, sequence_parallel=False,
                  software=MEGATRON_DEEPSPEED), 3.0)
def test_more_bandwidth_is_never_slower(found, times):
    old = found.job.cluster
    wider = again(found, cluster=replace(old, node_bytes_per_s=old.network_bytes_per_s * times))
    assert wider.step_s <= found.step_s * (1 + 1e-12)
    memory = Fact(old.device.memory_bandwidth.value * times, "GB/s", "a test", "2026")
    quicker = again(found, cluster=replace(old, device=replace(old.device, memory_bandwidth=memory)))
    assert quicker.step_s <= found.step_s * (1 + 1e-12)


# The closed forms that are added up

@pytest.mark.parametrize("layers, p, head", [(32, 4, 2.5), (32, 32, 2.5), (16, 2, 4.0), (126, 16, 0.7), (24, 8, 1.9)])
def test_stages_hold_all_layers_and_are_as_even_as_they_can_be(layers, p, head):
    ordinary, last = balanced_layers(layers, p, head)
    assert ordinary * (p - 1) + last == pytest.approx(layers)
    if last:
        assert ordinary == pytest.approx(last + head)


# What a reader is told

@pytest.mark.parametrize("change, told", [
    ({"layout": ParallelLayout(tp=3)}, "tp=3"), ({"layout": ParallelLayout(pp=64)}, "pp=64"),
    ({"layout": ParallelLayout(dp=128)}, "128 ranks"), ({"global_batch": 3, "layout": ParallelLayout(dp=2)},
    "multiple of"), ({"recompute": "half"}, "recompute='half'"), ({"precision": "fp4"}, "precision='fp4'"),
    ({"model": model("Chinchilla")}, "Chinchilla has no published shape")])
def test_a_layout_that_cannot_be_is_refused_with_what_was_expected(change, told):
    with pytest.raises(ValueError, match=told):
        estimate(**{"model": SHAPE, "cluster": cluster("H100", 64), "layout": ParallelLayout(), "global_batch": 8}
                 | change)


def test_a_torus_has_no_nodes_and_money_and_electricity_are_proportional_to_time():
    tpus = Cluster(accelerator("TPU v4"), 64)
    across, inside = (estimate(SHAPE, tpus, ParallelLayout(dp=64 // tp, tp=tp), 64) for tp in (16, 4))
    assert across.seconds["tp"] < 8 * inside.seconds["tp"]
    assert across.dollars(1e12) is None and across.kwh(2e12) == pytest.approx(2 * across.kwh(1e12))
    found = estimate(SHAPE, cluster("H100", 64), ParallelLayout(dp=64, zero_stage=3), 128, recompute="full")
    hours = 1e12 / found.tokens_per_s / 3600
    assert found.dollars(1e12) == pytest.approx(64 * hours * found.job.cluster.dollars_per_device_hour)
