"""The bytes of a step under a layout, against the formulas of single chapters; ranks are held against them too."""

from dataclasses import replace

import pytest

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
from course_lib.costs.splitting import balanced_expert_bytes, split_layer_bytes, split_parameters
from course_lib.facts import Shape

GPT = Shape(num_layers=2, hidden_size=16, num_heads=4, num_kv_heads=4, ffn_size=64, vocab_size=256, sequence_length=16,
            tied=True, learned_positions=True, biases=True)
WHOLE = StageWork(("embedding", "blocks.0", "blocks.1", "norm", "head"), rows=6, num_microbatches=2)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_each_axis_sends_what_the_formula_of_its_chapter_says(n):
    """And one number for the loss along dp; dealt out, the sums of what is shared; counts of rows along ep."""
    block = StageWork(("blocks.1",), rows=6, num_microbatches=1)
    assert tensor_bytes(block, GPT, n, 1) == split_layer_bytes(16, 6 * 16, n, 4)
    assert tensor_bytes(block, GPT, n, 1, True) - tensor_bytes(block, GPT, n, 1) == 2 * (n - 1) * 6 * 16 * 4 / n
    numbers = sum(sum(parameters_of(layer, GPT, n)) for layer in WHOLE.layers if layer != "head")
    assert numbers == split_parameters(GPT, n)
    for stage in range(4):
        expected = sent_bytes(split_parameters(GPT, 1), n, stage, 4, 2) + 2 * (n - 1) / n * 4
        assert replica_bytes(WHOLE, GPT, 1, n, stage) == expected
    E, k, N = 4, 2, 24
    counts = [[[k * N // E] * E] * n] * 3  # of 3 forward passes
    each = 2 * balanced_expert_bytes(N, k, 16, n, 4) + 8 * E * (n - 1) // n
    assert [expert_bytes(counts, place, 16) for place in range(n)] == [3 * each] * n


@pytest.mark.parametrize("place, others_rows", [(0, 9), (1, 6), (2, 11)])
def test_along_etp_rows_go_to_all_and_sums_come_back_counted_row_by_row(place, others_rows):
    """3 ranks, 2 experts here: place 0's 4 rows to 2 others; of the others' 2 + 5 and 1 + 1 rows a sum each."""
    counts, D, w = [[3, 1], [2, 5], [1, 1]], 10, 4
    rows = (2 * sum(counts[place]) + others_rows) * D * w
    once = 2 * rows + 2 * 2 * 8  # gradients again; and in 8 bytes to each how many rows an expert has
    assert expert_width_bytes([counts], place, D, w) == once
    assert expert_width_bytes([counts] * 3, place, D, w) == 3 * once


def test_a_boundary_costs_a_message_each_way_a_micro_batch_and_tp_ranks_that_deal_out_send_a_part():
    inner = StageWork(("blocks.1",), 3, 2, sends_forward=1, sends_backward=1)
    M = 3 * 16 * 16 * 4
    assert pipeline_bytes(inner, GPT, 2, 1, 4) == 2 * 2 * M + 3 * 32
    assert pipeline_bytes(inner, GPT, 2, 1, 4, sequence_parallel=True) == 2 * M + 3 * 32
    assert pipeline_bytes(replace(inner, tied_elsewhere=True), GPT, 2, 1, 4) == 2 * 2 * M + 3 * 32 + 128 * 16 * 4
    assert pipeline_bytes(inner, GPT, 1, 1, 1) == 0


def test_axes_of_one_rank_send_nothing_and_the_norm_goes_to_all_ranks():
    assert step_bytes(WHOLE, GPT, {}) == {}
    assert set(step_bytes(WHOLE, GPT, {"dp": 2, "tp": 2})) == {"dp", "tp", "world"}
    assert set(step_bytes(WHOLE, GPT, {"dp": 2, "cp": 2})) == {"cp", "dp+cp"}
    assert set(step_bytes(WHOLE, GPT, {"tp": 2})) == {"tp"}
    assert step_bytes(WHOLE, GPT, {"dp": 2, "tp": 2})["world"] == 12
