"""Chapter 1's own: a sharded reader of a file, and whole runs on one page."""

import pytest
import torch

from course_lib import facts
from course_lib.why_distribute import plan_run, rule_of_thumb, starting_strategy, stream_rows


def written(tmp_path, num_bytes):
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(i % 251 for i in range(num_bytes)))
    return path


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ranks_rows_together_are_the_file_and_no_row_is_read_twice(tmp_path, world_size):
    path, s = written(tmp_path, 1000), 7
    shards = [list(stream_rows(path, s, rank, world_size)) for rank in range(world_size)]
    assert all(row.shape == (s + 1,) and row.dtype == torch.uint8 for shard in shards for row in shard)
    rows = [shards[i % world_size][i // world_size] for i in range(sum(map(len, shards)))]
    assert len(rows) == 999 // s
    text = torch.cat([row[:s] for row in rows])
    assert torch.equal(text, torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)[: len(text)])
    assert all(torch.equal(a[-1:], b[:1]) for a, b in zip(rows, rows[1:], strict=False))


def test_a_file_that_gives_some_rank_nothing_is_refused_before_the_first_row(tmp_path):
    with pytest.raises(ValueError, match="3 rows of 7 tokens: expected at least one for each of 4 ranks"):
        stream_rows(written(tmp_path, 22), 7, 0, 4)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        stream_rows(written(tmp_path, 100), 7, 2, 2)


def test_llama_3_8b_does_not_fit_one_h100_and_fits_eight_sharded():
    model, h100 = facts.model("Llama 3 8B"), facts.accelerator("H100")
    assert not plan_run(model, h100).fits and not plan_run(model, h100, 8, zero_stage=0).fits
    run = plan_run(model, h100, 8, zero_stage=3)
    assert run.fits and run.needed.optimizer_state == 12 * model.parameters.value / 8
    assert run.days == pytest.approx(6 * 8.03e9 * 15e12 / (8 * 989.5e12 * 0.4) / 86_400)
    assert run.usd == pytest.approx(run.days * 24 * 8 * 2.69)
    assert run.dearest_usd == pytest.approx(run.days * 24 * 8 * 12.29)


def test_experts_cost_memory_for_all_and_flops_for_the_active():
    mixtral, h100 = facts.model("Mixtral 8x7B"), facts.accelerator("H100")
    run = plan_run(mixtral, h100, num_tokens=1e12)
    assert run.flops == 6 * 12.9e9 * 1e12 and run.needed.parameters == 2 * 46.7e9
    with pytest.raises(ValueError, match="nobody has published"):
        plan_run(mixtral, h100)


def test_an_old_gpu_trains_in_fp16_and_what_has_no_price_has_none():
    run = plan_run(facts.model("GPT-3"), facts.accelerator("V100"), 10_000, utilisation=0.2)
    assert run.seconds == pytest.approx(run.flops / (10_000 * 125e12 * 0.2)) and run.usd is None
    assert plan_run(facts.model("GPT-3"), facts.accelerator("TPU v5p"), 64).kwh is None
    with pytest.raises(ValueError, match="no peak for 'fp32'"):
        plan_run(facts.model("GPT-3"), facts.accelerator("TPU v4"), precision="fp32")


def test_the_rule_of_thumb_and_the_arithmetic_agree_on_80_gb_nodes():
    for N in (0.1e9, 0.9e9, 3e9, 10e9, 30e9, 175e9):
        assert starting_strategy(N).name == rule_of_thumb(N)
    # the borders are the memory's, not the model's: larger devices move them
    assert starting_strategy(7e9, device_bytes=288e9).name == "data parallel"
    assert starting_strategy(30e9, device_bytes=288e9).name == "sharded data parallel"
