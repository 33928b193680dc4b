"""The bytes of a step under a layout, against the formulas of single chapters; ranks are held against them too."""

from dataclasses import replace

import pytest

from course_lib.costs.experts import balanced_expert_bytes
from course_lib.costs.hybrid import (
    StageWork,
    expert_bytes,
    expert_width_bytes,
    parameters_of,
    pipeline_bytes,
    replica_bytes,
    step_bytes,
    tensor_bytes,
)
from course_lib.costs.sharding import sent_bytes
from course_lib.costs.splitting import split_layer_bytes, split_parameters
from course_lib.facts import Shape

GPT = Shape(num_layers=2, hidden_size=16, num_heads=4, num_kv_heads=4, ffn_size=64, vocab_size=256, sequence_length=16,
            tied=True, learned_positions=True, biases=True)
WHOLE = StageWork(("embedding", "blocks.0", "blocks.1", "norm", "head"), rows=6, num_microbatches=2)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_a_block_along_tp_is_chapter_5s_formula_and_dealt_out_adds_the_sums_of_what_is_shared(t):
    block = StageWork(("blocks.1",), rows=6, num_microbatches=1)
    assert tensor_bytes(block, GPT, t, 1) == split_layer_bytes(16, 6 * 16, t, 4)
    more = tensor_bytes(block, GPT, t, 1, sequence_parallel=True) - tensor_bytes(block, GPT, t, 1)
    assert more == 2 * (t - 1) * 6 * 16 * 4 / t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_parameters_of_all_layers_are_those_that_a_rank_of_tp_holds(t):
    numbers = sum(sum(parameters_of(layer, GPT, t)) for layer in WHOLE.layers if layer != "head")
    assert numbers == split_parameters(GPT, t)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_replicas_send_chapter_6s_formula_and_one_number_for_the_loss(stage):
    n, numbers = 4, split_parameters(GPT, 1)
    expected = sent_bytes(numbers, n, stage, 4, WHOLE.num_microbatches) + 2 * (n - 1) / n * 4
    assert replica_bytes(WHOLE, GPT, 1, n, stage) == expected


def test_a_boundary_costs_a_message_each_way_a_micro_batch_and_tp_ranks_that_deal_out_send_a_part():
    inner = StageWork(("blocks.1",), 3, 2, sends_forward=1, sends_backward=1)
    M = 3 * 16 * 16 * 4
    assert pipeline_bytes(inner, GPT, 2, 1, 4) == 2 * 2 * M + 3 * 32
    assert pipeline_bytes(inner, GPT, 2, 1, 4, sequence_parallel=True) == 2 * M + 3 * 32
    assert pipeline_bytes(replace(inner, tied_elsewhere=True), GPT, 2, 1, 4) == 2 * 2 * M + 3 * 32 + 128 * 16 * 4
    assert pipeline_bytes(inner, GPT, 1, 1, 1) == 0


@pytest.mark.parametrize("e", [1, 2, 4])
def test_along_ep_an_even_spread_costs_chapter_8s_formula_both_ways_and_the_counts(e):
    E, k, N = 4, 2, 24
    counts = [[[k * N // E] * E] * e] * 3  # of 3 forward passes
    each = 2 * balanced_expert_bytes(N, k, 16, e, 4) + 8 * E * (e - 1) // e
    assert [expert_bytes(counts, place, 16) for place in range(e)] == [3 * each] * e


def test_along_etp_rows_go_to_all_and_sums_come_back_counted_row_by_row():
    """3 ranks, 2 experts here: this one's 4 rows to 2 others; of the others' 2 + 5 and 1 + 1 rows a sum each."""
    counts = [[3, 1], [2, 5], [1, 1]]
    for place, others_rows in ((0, 9), (1, 6), (2, 11)):
        own, D, w = sum(counts[place]), 10, 4
        once = (2 * own + others_rows) * D * w + 2 * 2 * 8  # and in 8 bytes to each how many rows an expert has
        assert expert_width_bytes([counts], place, D, w) == once + (2 * own + others_rows) * D * w  # gradients again
        assert expert_width_bytes([counts] * 3, place, D, w) == 3 * expert_width_bytes([counts], place, D, w)


def test_axes_of_one_rank_send_nothing_and_the_norm_goes_to_all_ranks():
    assert step_bytes(WHOLE, GPT, {}) == {}
    assert set(step_bytes(WHOLE, GPT, {"dp": 2, "tp": 2})) == {"dp", "tp", "world"}
    assert set(step_bytes(WHOLE, GPT, {"dp": 2, "cp": 2})) == {"cp", "dp+cp"}
    assert set(step_bytes(WHOLE, GPT, {"tp": 2})) == {"tp"}
    assert step_bytes(WHOLE, GPT, {"dp": 2, "tp": 2})["world"] == 12
