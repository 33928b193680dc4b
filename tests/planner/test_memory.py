"""Memory by hand; what means outside of the search would save; a software's own bytes."""

import re
from dataclasses import replace

import pytest

from course_lib.costs.scaling import first_past_the_share
from course_lib.facts import Shape, model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.constants import FSDP2, NANOTRON, TORCHTITAN, TRAINERS
from course_lib.planner.estimate import Estimate, estimate
from course_lib.planner.memory import layer_numbers, needed_bytes, saved_bytes
from course_lib.planner.plan import plan

SHAPE = Shape(num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_size=128, vocab_size=1000,
              sequence_length=32)
LAYER = sum(layer_numbers(SHAPE))
NUMBERS = 4 * LAYER + 2 * 1000 * 64
SEVEN = model("Llama 2 7B")
GATHERED = 2 * 2 * LAYER  # bytes of the layers that ZeRO-3 has whole
KEMPNER = replace(FSDP2, **TRAINERS["kempnerforge"])
LOGITS, ROWS = 32 * 1000, 32 * 64 * 2 / 2  # of 32 tokens; bytes of what they are made from, of which half is another's


def one(layout="dp8", *, shape=SHAPE, rows=8, **how) -> Estimate:
    layout = ParallelLayout.from_string(layout)
    return estimate(shape, cluster("H100", layout.world_size), layout, rows, **how)


@pytest.mark.parametrize("layout, how, parameters, gradients, state", [
    # 2 bytes of weights, 4 of a gradient, 12 of state
    ("dp8", {}, 2 * NUMBERS, 4 * NUMBERS, 12 * NUMBERS), ("dp8,zero1", {}, 2 * NUMBERS, 4 * NUMBERS, 12 * NUMBERS / 8),
    ("dp8,zero2", {}, 2 * NUMBERS, 4 * NUMBERS / 8, 12 * NUMBERS / 8),
    ("dp8,zero3", {}, 2 * NUMBERS / 8 + GATHERED, 4 * NUMBERS / 8, 12 * NUMBERS / 8),
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


def test_what_an_8_bit_optimiser_the_host_and_adapters_would_save_is_told_where_nothing_fits():
    """Two devices of 24 GB: 7B in 16 bytes a number are 54 GiB of each, of which 12 are state and 4 gradients."""
    whole = one("dp8")
    assert [*saved_bytes(whole.job, whole.memory).values()] == pytest.approx([6 * NUMBERS, 12 * NUMBERS, 16 * NUMBERS])
    none = plan(SEVEN, cluster("RTX 4090", 2), 16, sequence_length=4096)
    assert not none
    state = re.search(r"an 8-bit optimiser would save ([\d.]+) GiB; the optimiser on the host would save ([\d.]+) GiB; "
                      r"adapters in place of the whole model \(LoRA\) would save ([\d.]+) GiB; ", none.reason)
    eight, host, adapters = map(float, state.groups())
    assert eight == pytest.approx(host / 2, abs=0.1) and adapters == pytest.approx(host * 16 / 12, abs=0.1)


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
