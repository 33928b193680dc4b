"""What a rank holds, by hand: the bytes that a software's own source tells."""

from dataclasses import replace

import pytest

from course_lib.costs.bubbles import first_past_the_share
from course_lib.facts import Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import estimate
from course_lib.planner.memory import needed_bytes
from course_lib.planner.software import FSDP2, NANOTRON, TORCHTITAN, TRAINERS
from course_lib.planner.step import layer_parameters

KEMPNER = replace(FSDP2, **TRAINERS["kempnerforge"])
SHAPE = Shape(num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_size=128, vocab_size=1000,
              sequence_length=32)
NUMBERS = 4 * layer_parameters(SHAPE) + 2 * 1000 * 64


def held(software, *, rows=8, devices=8, **axes):
    zero = axes.pop("zero", 0)
    return estimate(SHAPE, cluster("H100", devices), ParallelLayout(zero_stage=zero, **axes), rows, software=software)


# Who deals out layers

def test_a_stage_of_nanotron_takes_the_layer_that_passes_its_share():
    """8B: 32 layers and a read-out of 2.2: with 2 stages 17.1 each, so 18 and 14; with 8 stages 4.3, so 5 and 2."""
    assert first_past_the_share(32, 2, 2.2) == (18, 14) and first_past_the_share(32, 8, 2.2) == (5, 2)
    assert first_past_the_share(32, 1, 2.2) == (32, 32) and first_past_the_share(16, 16, 30) == (3, 0)


# The loss

@pytest.mark.parametrize("software, tp, logit_bytes", [
    (KEMPNER, 1, 8), (KEMPNER, 2, 2 * 8), (TORCHTITAN, 1, 10), (TORCHTITAN, 2, 16), (FSDP2, 2, 10)])
def test_logits_are_as_often_there_as_the_loss_makes_them(software, tp, logit_bytes):
    """32 tokens, 1000 / tp logits; with sequence parallelism the input of their product, of which half is another's."""
    gathered = 32 * 64 * 2 / 2 if tp == 2 else 0
    assert held(software, tp=tp).memory["logits"] == 32 * 1000 / tp * logit_bytes + gathered


def test_the_last_stage_of_a_pytorch_pipeline_has_the_logits_of_all_micro_batches():
    assert held(FSDP2, pp=2, rows=8).memory["logits"] == 32 * 1000 * (10 + 2 * 8)


# Gradients

def test_fsdp_that_reduces_after_the_last_micro_batch_has_whole_gradients_in_32_bits():
    one, two = held(KEMPNER, dp=8, zero=3, rows=8), held(KEMPNER, dp=8, zero=3, rows=16)
    assert one.memory["gradients"] == pytest.approx(4 * NUMBERS / 8)
    assert two.memory["gradients"] == pytest.approx(4 * NUMBERS)
    assert held(FSDP2, dp=8, zero=3, rows=16).memory["gradients"] == one.memory["gradients"]


# Blocks that are freed late

def test_what_waits_for_the_network_is_in_the_peak_but_not_in_the_way():
    """Two whole vectors a token and layer, but this rank's half: 2 x 64 x 32 x 2 bytes / 2 in each of 4 layers."""
    found = held(NANOTRON, tp=2)
    assert found.memory["other"] == 2**30 + 4 * 2 * 64 * 32 * 2 / 2
    assert needed_bytes(found.memory) == pytest.approx(found.memory_bytes - 4 * 2 * 64 * 32)
    assert needed_bytes(held(NANOTRON).memory) == held(NANOTRON).memory_bytes
