"""What holds for every estimate, whatever the constants are."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from course_lib.costs.bubbles import balanced_layers
from course_lib.costs.flops import step_flops
from course_lib.facts import Shape, accelerator, model
from course_lib.facts.fact import Fact
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster, cluster
from course_lib.planner.estimate import Estimate, estimate, estimate_job
from course_lib.planner.layer import head_pass, layer_pass
from course_lib.planner.software import (
    DEEPSPEED_2021,
    MEGATRON_2021,
    MEGATRON_DEEPSPEED,
    SOFTWARE,
    find_software,
)
from course_lib.planner.step import CAUSES, MATRICES, accumulation_seconds, matrix_shares, stages_of

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
        schedule=draw(st.sampled_from(("1f1b", "gpipe", "zb1p", "zb2p"))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))), gradient_bytes=draw(st.sampled_from((2, 4))),
        sequence_parallel=tp > 1 and draw(st.booleans()), flash=draw(st.booleans()), dropout=draw(st.booleans()),
        software=draw(st.sampled_from(SOFTWARE)))


def again(found: Estimate, **changes) -> Estimate:
    """The same job, but for `changes` of it or of its layout or cluster."""
    job = found.job
    arguments = {"micro_batch": job.micro_batch, "v": job.v, "schedule": job.schedule, "recompute": job.recompute,
                 "sequence_parallel": job.sequence_parallel, "gradient_bytes": job.gradient_bytes,
                 "flash": job.flash, "dropout": job.dropout, "software": job.software, "cluster": job.cluster,
                 "layout": job.layout} | changes
    return estimate(job.shape, arguments.pop("cluster"), arguments.pop("layout"), job.global_batch, **arguments)


def test_experts_are_dealt_out_over_ranks_of_tp_whole_or_cut():
    """Whole (etp 1) they are fewer on each rank, and nobody gathers the rows of others: the same numbers, less time."""
    whole, cut = (estimate(EXPERTS, cluster("H100", 16), ParallelLayout(dp=2, tp=8, ep=16 // etp, etp=etp), 8)
                  for etp in (1, 8))
    assert whole.memory["parameters"] == pytest.approx(cut.memory["parameters"])
    assert whole.seconds["ep"] < cut.seconds["ep"] and whole.seconds["matmul"] < cut.seconds["matmul"]


def test_all_wait_for_the_fullest_expert():
    even, uneven = (estimate(EXPERTS, cluster("H100", 8), ParallelLayout(dp=8, ep=8), 8, expert_imbalance=imbalance)
                    for imbalance in (1.0, 2.0))
    assert uneven.seconds["ep"] > 1.8 * even.seconds["ep"] and uneven.seconds["matmul"] > even.seconds["matmul"]
    assert uneven.memory["activations"] > even.memory["activations"]


def test_chunks_are_whole_unless_layers_are_dealt_out_by_hand():
    llama = model("Llama 3 70B").shape
    with pytest.raises(ValueError, match="pp=8 with v=8: expected chunks that divide the 80 layers.*1.25 layers"):
        estimate(llama, cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256, v=8)
    assert estimate(llama, cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256, v=5).step_s > 0
    assert estimate(llama, cluster("H100", 64), ParallelLayout(dp=2, pp=8, tp=4), 256, v=8, uneven=True).step_s > 0


def test_a_v100_has_neither_bf16_nor_flash_attention():
    found = estimate(SHAPE, cluster("V100", 8), ParallelLayout(tp=8), 8)
    assert found.job.precision == "fp16" and not found.job.flash
    with pytest.raises(ValueError, match="A100 has no peak for 'fp8'"):
        estimate(SHAPE, cluster("A100", 8), ParallelLayout(tp=8), 8, precision="fp8")


@settings(max_examples=150)
@given(estimates())
def test_causes_and_kinds_add_up_and_are_not_negative(found):
    assert tuple(found.seconds) == CAUSES and min(found.seconds.values()) >= 0 and min(found.memory.values()) >= 0
    assert sum(found.seconds.values()) == found.step_s and sum(found.memory.values()) == found.memory_bytes
    low, high = found.step_range_s
    assert 0 < low < found.step_s < high and found.uncertainty < 1


@settings(max_examples=150)
@given(estimates())
def test_no_step_is_faster_than_the_roofline(found):
    """Products alone, at the peak of the data sheet; a causal mask spares half of attention."""
    job = found.job
    attention = 12 * job.sequence_length * job.shape.num_heads * job.shape.d * job.shape.num_layers * job.tokens
    needed = step_flops(job.shape, job.global_batch, job.sequence_length) - attention / 2
    assert found.step_s >= needed / found.num_devices / job.cluster.peak_flops_per_s()
    assert found.mfu > 0


@settings(max_examples=100)
@given(estimates())
def test_one_rank_of_an_axis_has_none_of_its_time(found):
    layout = found.layout
    assert (found.seconds["tp"] == 0) == (layout.tp == 1)
    assert (found.seconds["cp"] == 0) >= (layout.cp == 1) and (found.seconds["ep"] == 0) == (
        layout.ep * layout.etp == 1)
    if layout.pp == 1:
        assert found.seconds["pp"] == found.seconds["bubble"] == 0
    if layout.dp * layout.cp == 1:
        assert found.seconds["dp"] == 0


@settings(max_examples=100)
@given(estimates(), st.floats(1.1, 10))
def test_more_bandwidth_is_never_slower(found, times):
    old = found.job.cluster
    wider = again(found, cluster=replace(old, node_bytes_per_s=old.network_bytes_per_s * times))
    assert wider.step_s <= found.step_s * (1 + 1e-12)
    memory = Fact(old.device.memory_bandwidth.value * times, "GB/s", "a test", "2026")
    quicker = again(found, cluster=replace(old, device=replace(old.device, memory_bandwidth=memory)))
    assert quicker.step_s <= found.step_s * (1 + 1e-12)


def test_faster_memory_does_not_lengthen_a_zero_bubble_pipeline_that_waits_for_launches():
    """F, I and W wait alike for the processor: the share of W that fills gaps is that of the work."""
    job = estimate(SHAPE, cluster("A100", 512), ParallelLayout(dp=8, pp=4, cp=4, tp=4, zero_stage=3), 64,
                   schedule="zb1p", flash=False, sequence_parallel=False, software=MEGATRON_DEEPSPEED).job
    assert estimate_job(job).seconds["launch"] > 0
    for times in (1.5, 2, 3, 10):
        memory = Fact(job.cluster.device.memory_bandwidth.value * times, "GB/s", "a test", "2026")
        quicker = replace(job.cluster, device=replace(job.cluster.device, memory_bandwidth=memory))
        assert estimate_job(replace(job, cluster=quicker)).step_s <= estimate_job(job).step_s


@settings(max_examples=60)
@given(estimates())
def test_memory_falls_with_the_zero_stage(found):
    """But for the layers that ZeRO-3 has whole while they work, which count only beside many layers."""
    assume(found.job.shape is SHAPE and found.layout.pp <= 2)
    assume(found.layout.pp == 1 or not found.job.software.shards_layers)  # in a pipeline FSDP keeps stages gathered
    held = [again(found, layout=replace(found.layout, zero_stage=stage)) for stage in range(4)]
    states = [sum(each.memory[kind] for kind in ("parameters", "gradients", "optimizer_state")) for each in held]
    assert all(less <= more for more, less in zip(states, states[1:]))
    assert (states[1] < states[0]) == (found.layout.dp * found.layout.cp > 1)


@settings(max_examples=60)
@given(estimates())
def test_recomputation_trades_time_for_memory(found):
    assume(found.job.software is not MEGATRON_2021)
    none, full = (again(found, recompute=policy) for policy in ("none", "full"))
    assert full.step_s > none.step_s
    if found.job.num_microbatches * found.job.shape.num_layers > 4 * found.layout.pp:
        assert full.memory["activations"] < none.memory["activations"]


# The closed forms that are added up

@pytest.mark.parametrize("layers, p, head", [(32, 4, 2.5), (32, 32, 2.5), (16, 2, 4.0), (126, 16, 0.7), (24, 8, 1.9)])
def test_stages_hold_all_layers_and_are_as_even_as_they_can_be(layers, p, head):
    ordinary, last = balanced_layers(layers, p, head)
    assert ordinary * (p - 1) + last == pytest.approx(layers)
    if last:
        assert ordinary == pytest.approx(last + head)


def test_stages_of_unequal_size_fill_the_pipeline_with_the_layers_that_they_have():
    """32 layers on 16 stages with a large read-out: the largest stage has 3, the others do not."""
    found = estimate(SHAPE, cluster("H100", 16), ParallelLayout(pp=16), 32, software=find_software("nanotron 2025"))
    layer, head = layer_pass(found.job, found.rates), head_pass(found.job, found.rates)
    sizes = stages_of(found.job, layer, head)
    assert 15 * sizes.ordinary + sizes.last > 32
    work = sum(found.seconds[cause] for cause in ("matmul", "memory", "tp", "launch"))
    accumulated = found.job.shape.num_layers * accumulation_seconds(found.job, found.rates)
    whole_model = 32 * layer.total + head.total + accumulated
    assert found.seconds["bubble"] == pytest.approx(whole_model - work / found.job.num_microbatches)


def test_a_message_hides_behind_one_matrix_where_matrices_are_fetched_one_by_one():
    """The same work and bytes: a whole layer hides them better than the matrix before."""
    shares = matrix_shares(SHAPE)
    assert sum(shares) == pytest.approx(1) and len(shares) == MATRICES
    one, whole = (estimate(SHAPE, cluster("A100", 64), ParallelLayout(dp=64, zero_stage=3), 64, software=software)
                  for software in (DEEPSPEED_2021, replace(DEEPSPEED_2021, matrix_by_matrix=False)))
    assert one.seconds["dp"] > whole.seconds["dp"]


# What a reader is told

@pytest.mark.parametrize("change, told", [
    ({"layout": ParallelLayout(tp=3)}, "tp=3"), ({"layout": ParallelLayout(pp=64)}, "pp=64"),
    ({"layout": ParallelLayout(dp=4)}, "4 ranks"), ({"global_batch": 3, "layout": ParallelLayout(dp=2)}, "multiple of"),
    ({"recompute": "half"}, "recompute='half'"), ({"precision": "fp4"}, "precision='fp4'")])
def test_a_layout_that_cannot_be_is_refused_with_what_was_expected(change, told):
    arguments = {"layout": ParallelLayout(), "global_batch": 8} | change
    devices = 64 if "ranks" not in told else 2
    with pytest.raises(ValueError, match=told):
        estimate(SHAPE, cluster("H100", devices), **arguments)


def test_a_model_without_a_shape_is_named():
    with pytest.raises(ValueError, match="Chinchilla has no published shape"):
        estimate(model("Chinchilla"), cluster("H100", 8), ParallelLayout(dp=8), 8)


def test_a_torus_has_no_nodes():
    tpus = Cluster(accelerator("TPU v4"), 64)
    found = estimate(SHAPE, tpus, ParallelLayout(dp=4, tp=16), 64)
    inside = estimate(SHAPE, tpus, ParallelLayout(dp=16, tp=4), 64)
    assert found.seconds["tp"] < 8 * inside.seconds["tp"]
    assert found.dollars(1e12) is None and found.kwh(1e12) > 0


def test_money_and_electricity_are_proportional_to_time():
    found = estimate(SHAPE, cluster("H100", 64), ParallelLayout(dp=64, zero_stage=3), 128, recompute="full")
    hours = 1e12 / found.tokens_per_s / 3600
    assert found.dollars(1e12) == pytest.approx(64 * hours * found.job.cluster.dollars_per_device_hour)
    assert found.kwh(2e12) == pytest.approx(2 * found.kwh(1e12))
