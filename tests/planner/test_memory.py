"""Memory by hand: an 8-bit optimiser, the host, adapters, ZeRO in groups, and their price; a software's own bytes."""

from dataclasses import replace

import pytest

from course_lib.costs.flops import attention_flops_per_token, forward_flops_per_token, step_flops
from course_lib.costs.memory import (
    device_memory,
    lora_parameters,
)
from course_lib.costs.scaling import first_past_the_share
from course_lib.facts import Shape, model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import Choices
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import FSDP2, NANOTRON, TORCHTITAN, TRAINERS
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.frameworks import megatron_flags, torchtitan_lines
from course_lib.planner.layer import layer_pass
from course_lib.planner.memory import needed_bytes
from course_lib.planner.plan import plan
from course_lib.planner.search import pick_distinct
from course_lib.planner.stages import layer_numbers, trained_numbers
from course_lib.planner.step import message_seconds

SHAPE = Shape(num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_size=128, vocab_size=1000,
              sequence_length=32)
LAYER = sum(layer_numbers(SHAPE))
NUMBERS = 4 * LAYER + 2 * 1000 * 64
SEVEN, BOARD = model("Llama 2 7B"), cluster("RTX 4090", 8)
GATHERED = 2 * 2 * LAYER  # bytes of the layers that ZeRO-3 has whole
ADAPTED = 4 * 2 * 8 * (64 + 64)  # numbers of adapters of rank 8: of q and v in 4 layers
KEMPNER = replace(FSDP2, **TRAINERS["kempnerforge"])
LOGITS, ROWS = 32 * 1000, 32 * 64 * 2 / 2  # of 32 tokens; bytes of what they are made from, of which half is another's


def one(layout="dp8", *, shape=SHAPE, rows=8, **how) -> Estimate:
    layout = ParallelLayout.from_string(layout)
    return estimate(shape, cluster("H100", layout.world_size), layout, rows, **how)


@pytest.mark.parametrize("layout, how, parameters, gradients, state", [
    # 2 bytes of weights, 4 of a gradient, 12 of state; of 8 bits the moments have 2 in place of 8
    ("dp8", {}, 2 * NUMBERS, 4 * NUMBERS, 12 * NUMBERS), ("dp8", {"optimizer": "adam8bit"}, None, None, 6 * NUMBERS),
    # the host has masters, moments and gradients, the device what it computes with; alone it is one shard of one
    ("dp8,zero1", {"offload": "optimizer"}, 2 * NUMBERS, 4 * NUMBERS, 0),
    ("dp8,zero2", {"offload": "optimizer"}, 2 * NUMBERS, 0, 0),
    ("dp8,zero3", {"offload": "optimizer"}, 2 * NUMBERS / 8 + GATHERED, 0, 0),
    ("dp8,zero3", {"offload": "all"}, GATHERED, 0, 0), ("dp1", {"offload": "optimizer"}, 2 * NUMBERS, 0, 0),
    ("dp1", {"offload": "all"}, 0, 0, 0),
    # frozen weights have no gradients and no state, adapters sixteen bytes
    *((f"dp8,zero{zero}", {"lora_rank": 8, "gradient_bytes": 2},
       2 * (NUMBERS + ADAPTED) / (8 if zero == 3 else 1) + GATHERED * (zero == 3),
       2 * ADAPTED / (8 if zero >= 2 else 1), 12 * ADAPTED / (8 if zero else 1)) for zero in range(4)),
    # two groups of 8 are 8 shards
    ("dp16,zero3", {"replicas": 2, "rows": 16}, 2 * NUMBERS / 8 + GATHERED, 4 * NUMBERS / 8, 12 * NUMBERS / 8),
    # FSDP that reduces after the last micro-batch has whole gradients
    ("dp8,zero3", {"software": KEMPNER}, None, 4 * NUMBERS / 8, None),
    ("dp8,zero3", {"software": KEMPNER, "rows": 16}, None, 4 * NUMBERS, None),
    ("dp8,zero3", {"software": FSDP2, "rows": 16}, None, 4 * NUMBERS / 8, None),
])
def test_a_device_holds_what_adding_up_by_hand_gives(layout, how, parameters, gradients, state):
    memory = one(layout, **how).memory
    for kind, held in (("parameters", parameters), ("gradients", gradients), ("optimizer_state", state)):
        assert held is None or memory[kind] == pytest.approx(held), kind


@pytest.mark.parametrize("layout, software, held", [
    ("dp1", KEMPNER, LOGITS * 8), ("tp2", KEMPNER, LOGITS / 2 * 16 + ROWS), ("dp1", TORCHTITAN, LOGITS * 10),
    ("tp2", TORCHTITAN, LOGITS / 2 * 16 + ROWS), ("tp2", FSDP2, LOGITS / 2 * 10 + ROWS),
    ("pp2", FSDP2, LOGITS * (10 + 2 * 8))])  # PyTorch's pipeline keeps those of all micro-batches
def test_logits_are_as_often_there_as_the_loss_makes_them(layout, software, held):
    assert one(layout, software=software).memory["logits"] == held


def test_the_host_has_sixteen_bytes_of_each_of_its_numbers():
    host_bytes = one("dp8,zero2", offload="optimizer").host_bytes
    assert host_bytes == pytest.approx(16 * NUMBERS / 8)
    assert host_bytes == device_memory(NUMBERS, 8, 2, "mixed, fp32 gradients", offload=True).host


def test_offloading_costs_the_wire_and_the_hosts_memory_and_8_bits_of_moments_are_read_sooner():
    """2 bytes a gradient there and 2 a weight back over PCIe 5.0; Adam's 30 bytes, 1.2 times, at an eighth of a socket.
    """
    here, there, often = (one(layout, rows=16, **how) for layout, how in (
        ("dp8,zero1", {}), ("dp8,zero1", {"offload": "optimizer"}), ("dp8,zero2", {"offload": "optimizer"})))
    N = NUMBERS / 8
    grown = 1.2 * 30 * N * (8 / 204.8e9 - 1 / here.job.cluster.device.memory_bytes_per_s) + 4 * N / 63e9
    assert there.seconds["optimiser"] - here.seconds["optimiser"] == pytest.approx(grown)
    assert often.seconds["optimiser"] - there.seconds["optimiser"] == pytest.approx(
        2 * N / 63e9)  # the gradients of each of two micro-batches
    assert one(optimizer="adam8bit").seconds["optimiser"] < one().seconds["optimiser"]


@pytest.mark.parametrize("layout, given", [
    ("dp8", {"offload": "optimizer"}), ("dp8,zero2", {"offload": "all"}), ("dp8,zero1", {"offload": "some"}),
    ("dp8,zero1", {"replicas": 3}), ("dp8", {"replicas": 2}), ("dp8", {"lora_rank": -1}),
    ("dp8", {"optimizer": "lion"}), ("dp8,zero1", {"offload": "optimizer", "lora_rank": 8})])
def test_what_cannot_be_is_refused_with_what_was_expected(layout, given):
    with pytest.raises(ValueError, match="expected"):
        one(layout, **given)


def test_frozen_weights_are_read_once_in_backward_and_not_twice():
    """4 in place of 6 FLOPs a number, since only vectors get gradients; attention is as before."""
    job = one(shape=SEVEN.shape, rows=8).job
    rates = one(shape=SEVEN.shape).rates
    plain, adapted = layer_pass(job, rates), layer_pass(replace(job, lora_rank=16), rates)
    extra = adapted.forward.matmul - plain.forward.matmul
    assert 0 < extra < 0.03 * plain.forward.matmul
    assert plain.backward.matmul - adapted.backward.matmul == pytest.approx(plain.weight_s - 2 * extra)
    tokens, s = 8 * 4096, 4096
    linear = forward_flops_per_token(SEVEN.shape, s) - 32 * attention_flops_per_token(SEVEN.shape, s)
    found = one(shape=SEVEN.shape, lora_rank=16)
    assert found.mfu * found.step_s * 8 * found.job.cluster.peak_flops_per_s() == pytest.approx(
        step_flops(SEVEN.shape, 8, s) - tokens * linear)


def test_replicas_add_up_the_gradients_of_adapters_alone():
    wide, narrow = one(shape=SEVEN.shape, rows=8), one(shape=SEVEN.shape, rows=8, lora_rank=16)
    assert narrow.seconds["dp"] < 0.1 * wide.seconds["dp"]
    assert trained_numbers(narrow.job)[0][0] == lora_parameters(SEVEN.shape, 16) / 32


def test_zero_in_groups_gathers_inside_and_adds_up_an_eighth_across():
    """16 devices, 2 groups of 8, a node each."""
    groups = one("dp16,zero3", shape=SEVEN.shape, rows=16, replicas=2)
    node, across = groups.rates.network.group(8), groups.rates.network.group(2, 8)
    sent, num_bytes = [(1e9, 16, 1)], 2e9
    gather, scatter = (message_seconds(groups.job, groups.rates, op, sent, 2, 1)
                       for op in ("all_gather", "reduce_scatter"))
    assert gather == node.seconds("all_gather", num_bytes, 1)
    assert scatter == pytest.approx(node.seconds("reduce_scatter", num_bytes, 1)
                                    + across.seconds("all_reduce", num_bytes / 8, 1))


def test_a_search_that_may_offload_finds_what_nothing_else_makes_fit():
    """Two devices of 24 GB: 7B in 16 bytes a number are 54 GiB of each."""
    two = cluster("RTX 4090", 2)
    none = plan(SEVEN, two, 16, sequence_length=4096)
    assert not none and "8-bit" not in none.reason
    assert "the optimiser on the host" in none.reason and "adapters of rank 16" in none.reason
    found = plan(SEVEN, two, 16, sequence_length=4096, choices=Choices(offload=("none", "optimizer", "all")))
    assert found and all(each.job.offload != "none" for each in found)
    assert plan(SEVEN, two, 16, sequence_length=4096, lora_rank=16)[0].step_s < found[0].step_s


def test_plans_with_other_savings_are_told_apart():
    found = plan(SEVEN, BOARD, 64, sequence_length=4096, choices=Choices(
        tensor=(1,), pipeline=(1,), context=(1,), optimizers=("adam", "adam8bit"), offload=("none", "optimizer")))
    assert {(each.job.optimizer, each.job.offload) for each in pick_distinct(found)} == {
        ("adam", "none"), ("adam", "optimizer"), ("adam8bit", "none"), ("adam8bit", "optimizer")}


def test_frameworks_are_told_of_groups_and_the_host():
    found = one("dp16,zero3", shape=SEVEN.shape, rows=16, replicas=2, offload="optimizer")
    assert {"--num-distributed-optimizer-instances 2", "--optimizer-cpu-offload"} <= set(megatron_flags(found))
    assert {"config.parallelism.data_parallel_shard_degree = 8", "config.training.enable_cpu_offload = True",
            "config.parallelism.data_parallel_replicate_degree = 2"} <= {*torchtitan_lines(found)}
    for write in (megatron_flags, torchtitan_lines):
        with pytest.raises(ValueError, match="expected a plan without"):
            write(one(shape=SEVEN.shape, lora_rank=8))


# What a software keeps, by its own source

def test_a_stage_of_nanotron_takes_the_layer_that_passes_its_share():
    """8B: 32 layers and a read-out of 2.2: with 2 stages 17.1 each, so 18 and 14; with 8 stages 4.3, so 5 and 2."""
    assert first_past_the_share(32, 2, 2.2) == (18, 14) and first_past_the_share(32, 8, 2.2) == (5, 2)
    assert first_past_the_share(32, 1, 2.2) == (32, 32) and first_past_the_share(16, 16, 30) == (3, 0)


def test_what_waits_for_the_network_is_in_the_peak_but_not_in_the_way():
    """Two whole vectors a token and layer, but this rank's half: 2 x 64 x 32 x 2 bytes / 2 in each of 4 layers."""
    found, alone = one("tp2", software=NANOTRON).memory, one("dp1", software=NANOTRON).memory
    assert found["other"] == 2**30 + 4 * 2 * 64 * 32 * 2 / 2
    assert needed_bytes(found) == pytest.approx(sum(found.values()) - 4 * 2 * 64 * 32)
    assert needed_bytes(alone) == sum(alone.values())
