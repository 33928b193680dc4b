"""Memory by hand: an 8-bit optimiser, the host, adapters, ZeRO in groups, and their price; a software's own bytes."""

from dataclasses import replace

import pytest

from course_lib.costs.bubbles import first_past_the_share
from course_lib.costs.flops import attention_flops_per_token, forward_flops_per_token, step_flops
from course_lib.costs.memory import (
    device_memory,
    lora_parameters,
    offload_seconds,
    state_bytes_per_parameter,
)
from course_lib.facts import Shape, model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import Choices
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.flags import megatron_flags, torchtitan_lines
from course_lib.planner.layer import layer_pass
from course_lib.planner.memory import needed_bytes
from course_lib.planner.plan import plan
from course_lib.planner.ranking import distinct
from course_lib.planner.software import FSDP2, NANOTRON, TORCHTITAN, TRAINERS
from course_lib.planner.step import layer_parameters, message_seconds, trained_of

SHAPE = Shape(num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_size=128, vocab_size=1000,
              sequence_length=32)
NUMBERS = 4 * layer_parameters(SHAPE) + 2 * 1000 * 64
SEVEN, BOARD = model("Llama 2 7B"), cluster("RTX 4090", 8)
STATE = ("parameters", "gradients", "optimizer_state")


def one(*, shape=SHAPE, rows=8, zero=0, devices=8, dp=8, **how) -> Estimate:
    return estimate(shape, cluster("H100", devices), ParallelLayout(dp=dp, zero_stage=zero), rows, **how)


def state(found: Estimate) -> list[float]:
    return [found.memory[kind] for kind in STATE]


# An 8-bit optimiser

def test_an_8_bit_optimiser_has_two_bytes_of_moments_a_number_and_the_master_copy():
    assert state_bytes_per_parameter("mixed", "adam8bit") == 4 + 2
    wide, narrow = one(), one(optimizer="adam8bit")
    assert wide.memory["optimizer_state"] - narrow.memory["optimizer_state"] == 6 * NUMBERS
    assert narrow.seconds["optimiser"] < wide.seconds["optimiser"]


# The host's memory

GATHERED = 2 * 2 * layer_parameters(SHAPE)  # bytes of the layers that ZeRO-3 has whole


@pytest.mark.parametrize("how, held", [  # 2 bytes of weights, 4 of a gradient, 12 of state; an eighth of what is shared
    ({"zero": 1, "offload": "optimizer"}, (2 * NUMBERS, 4 * NUMBERS, 0)),
    ({"zero": 2, "offload": "optimizer"}, (2 * NUMBERS, 0, 0)),
    ({"zero": 3, "offload": "optimizer"}, (2 * NUMBERS / 8 + GATHERED, 0, 0)),
    ({"zero": 3, "offload": "all"}, (GATHERED, 0, 0)),
    ({"dp": 1, "devices": 1, "offload": "optimizer"}, (2 * NUMBERS, 0, 0)),  # alone it is one shard of one
    ({"dp": 1, "devices": 1, "offload": "all"}, (0, 0, 0)),
])
def test_the_host_has_masters_moments_and_gradients_and_the_device_what_it_computes_with(how, held):
    found = one(**how)
    assert state(found) == pytest.approx(held)
    if how.get("zero") == 2:  # 4 + 8 + 4 there
        assert found.host_bytes == pytest.approx(16 * NUMBERS / 8)
        assert found.host_bytes == device_memory(NUMBERS, 8, 2, "mixed, fp32 gradients", offload=True).host


def test_offloading_costs_the_wire_and_the_hosts_memory():
    """2 bytes a gradient there and 2 a weight back over PCIe 5.0; Adam's 30 bytes, 1.2 times, at an eighth of a socket.
    """
    assert offload_seconds(1e9, 50e9) == pytest.approx(4e9 / 50e9)
    here, there = one(zero=1, rows=16), one(zero=1, rows=16, offload="optimizer")
    N = NUMBERS / 8
    grown = 1.2 * 30 * N * (8 / 204.8e9 - 1 / here.job.cluster.device.memory_bytes_per_s) + 4 * N / 63e9
    assert there.seconds["optimiser"] - here.seconds["optimiser"] == pytest.approx(grown)
    assert one(zero=2, rows=16, offload="optimizer").seconds["optimiser"] - there.seconds["optimiser"] == pytest.approx(
        2 * N / 63e9)  # the gradients of each of two micro-batches


@pytest.mark.parametrize("given", [{"zero": 0, "offload": "optimizer"}, {"zero": 2, "offload": "all"},
                                   {"zero": 1, "offload": "some"}, {"zero": 1, "replicas": 3},
                                   {"zero": 0, "replicas": 2}, {"lora_rank": -1}, {"optimizer": "lion"},
                                   {"zero": 1, "offload": "optimizer", "lora_rank": 8}])
def test_what_cannot_be_is_refused_with_what_was_expected(given):
    with pytest.raises(ValueError, match="expected"):
        one(**given)


# Adapters

def test_frozen_weights_have_no_gradients_and_no_state_and_adapters_sixteen_bytes():
    adapted = lora_parameters(SHAPE, 8)
    for zero in range(4):
        weights, gradients, moments = (8 if zero >= stage else 1 for stage in (3, 2, 1))  # that share them
        held = 2 * (NUMBERS + adapted) / weights + GATHERED * (zero == 3)
        assert state(one(zero=zero, lora_rank=8, gradient_bytes=2)) == pytest.approx(
            [held, 2 * adapted / gradients, 12 * adapted / moments])


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
    assert trained_of(narrow.job)[0][0] == lora_parameters(SEVEN.shape, 16) / 32


# Groups

def test_zero_in_groups_divides_by_the_group_and_adds_up_across_them():
    """16 devices, 2 groups of 8 (a node each): the state of 8 shards; gathers stay inside, an eighth goes across."""
    how = {"shape": SEVEN.shape, "devices": 16, "dp": 16, "rows": 16, "zero": 3}
    all_of_them, groups = one(**how), one(**how, replicas=2)
    for kind in ("optimizer_state", "gradients"):
        assert groups.memory[kind] == pytest.approx(2 * all_of_them.memory[kind])
    node, across = groups.rates.network.group(8), groups.rates.network.group(2, 8)
    sent, num_bytes = [(1e9, 16, 1)], 2e9
    gather, scatter = (message_seconds(groups.job, groups.rates, op, sent, 2, 1)
                       for op in ("all_gather", "reduce_scatter"))
    assert gather == node.seconds("all_gather", num_bytes, 1)
    assert scatter == pytest.approx(node.seconds("reduce_scatter", num_bytes, 1)
                                    + across.seconds("all_reduce", num_bytes / 8, 1))


# In a search

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
    assert {(each.job.optimizer, each.job.offload) for each in distinct(found)} == {
        ("adam", "none"), ("adam", "optimizer"), ("adam8bit", "none"), ("adam8bit", "optimizer")}


# In a framework's words

def test_frameworks_are_told_of_groups_and_the_host():
    found = one(shape=SEVEN.shape, devices=16, dp=16, rows=16, zero=3, replicas=2, offload="optimizer")
    assert {"--num-distributed-optimizer-instances 2", "--optimizer-cpu-offload"} <= set(megatron_flags(found))
    assert {"config.parallelism.data_parallel_shard_degree = 8", "config.training.enable_cpu_offload = True",
            "config.parallelism.data_parallel_replicate_degree = 2"} <= {*torchtitan_lines(found)}
    for write in (megatron_flags, torchtitan_lines):
        with pytest.raises(ValueError, match="expected a plan without"):
            write(one(shape=SEVEN.shape, lora_rank=8))


# What a software keeps, by its own source

KEMPNER = replace(FSDP2, **TRAINERS["kempnerforge"])


def held(software, *, rows=8, zero=0, **axes):
    layout = ParallelLayout(zero_stage=zero, **axes)
    return estimate(SHAPE, cluster("H100", 8), layout, rows, software=software).memory


def test_a_stage_of_nanotron_takes_the_layer_that_passes_its_share():
    """8B: 32 layers and a read-out of 2.2: with 2 stages 17.1 each, so 18 and 14; with 8 stages 4.3, so 5 and 2."""
    assert first_past_the_share(32, 2, 2.2) == (18, 14) and first_past_the_share(32, 8, 2.2) == (5, 2)
    assert first_past_the_share(32, 1, 2.2) == (32, 32) and first_past_the_share(16, 16, 30) == (3, 0)


@pytest.mark.parametrize("software, tp, logit_bytes", [
    (KEMPNER, 1, 8), (KEMPNER, 2, 2 * 8), (TORCHTITAN, 1, 10), (TORCHTITAN, 2, 16), (FSDP2, 2, 10)])
def test_logits_are_as_often_there_as_the_loss_makes_them(software, tp, logit_bytes):
    """32 tokens, 1000 / tp logits; with sequence parallelism the input of their product, of which half is another's."""
    gathered = 32 * 64 * 2 / 2 if tp == 2 else 0
    assert held(software, tp=tp)["logits"] == 32 * 1000 / tp * logit_bytes + gathered


def test_a_pytorch_pipeline_keeps_all_logits_and_fsdp_may_keep_whole_gradients_until_the_last_micro_batch():
    assert held(FSDP2, pp=2)["logits"] == 32 * 1000 * (10 + 2 * 8)
    for software, rows, shared_by in ((KEMPNER, 8, 8), (KEMPNER, 16, 1), (FSDP2, 16, 8)):  # in 32 bits
        assert held(software, dp=8, zero=3, rows=rows)["gradients"] == pytest.approx(4 * NUMBERS / shared_by)


def test_what_waits_for_the_network_is_in_the_peak_but_not_in_the_way():
    """Two whole vectors a token and layer, but this rank's half: 2 x 64 x 32 x 2 bytes / 2 in each of 4 layers."""
    found, alone = held(NANOTRON, tp=2), held(NANOTRON)
    assert found["other"] == 2**30 + 4 * 2 * 64 * 32 * 2 / 2
    assert needed_bytes(found) == pytest.approx(sum(found.values()) - 4 * 2 * 64 * 32)
    assert needed_bytes(alone) == sum(alone.values())
