"""Chapter 1's arithmetic: against published rows, and against the tensors of the small GPT."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib import facts
from course_lib.collectives import Link
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch, record_memory
from course_lib.why_distribute import (
    PRECISIONS,
    activation_bytes_per_layer,
    amdahl,
    count_parameters,
    data_parallel_step,
    dollars,
    fit_amdahl,
    forward_flops_per_token,
    gustafson,
    ideal_on_cores,
    kilowatt_hours,
    loading_bytes_per_s,
    lora_memory,
    lora_parameters,
    matmul_intensity,
    plan_run,
    reading_s,
    roofline,
    rule_of_thumb,
    sc21_step_flops,
    sc21_training_seconds,
    shape_of,
    small_gpt_activation_bytes,
    starting_strategy,
    step_flops,
    stream_rows,
    strong_efficiency,
    tokens_per_s,
    total_time,
    training_days,
    training_flops,
    training_memory,
    training_seconds,
    utilisation,
    weak_efficiency,
)

SHAPED = [model for model in facts.MODELS if model.shape]
SMALL = [GPTConfig(), GPTConfig(num_layers=2, hidden_size=96, num_heads=3, vocab_size=512, sequence_length=128)]


# parameters and FLOPs

@pytest.mark.parametrize("model", SHAPED, ids=lambda model: model.name)
def test_a_published_shape_counts_to_the_published_number_of_parameters(model):
    # BERT has token types and a pooler besides, and its authors round to 340M
    assert count_parameters(model.shape) == pytest.approx(model.parameters.value,
                                                          rel=0.02 if "BERT" in model.name else 0.001)


@pytest.mark.parametrize("config", SMALL)
def test_the_small_gpt_has_exactly_the_parameters_counted(config):
    model, shape = GPT(config), shape_of(config)
    assert count_parameters(shape) == model.num_parameters()
    assert count_parameters(shape, include_embeddings=False) == model.num_parameters(include_embeddings=False)


@pytest.mark.parametrize("config", SMALL)
def test_the_small_gpt_does_exactly_the_flops_counted(config):
    model, tokens = GPT(config), torch.zeros(3, config.sequence_length, dtype=torch.int64)
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens, tokens)[1]
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    per_token = forward_flops_per_token(shape_of(config))
    assert forward.get_total_flops() == 3 * config.sequence_length * per_token
    assert forward.get_total_flops() + backward.get_total_flops() == step_flops(shape_of(config), 3)


def test_short_rows_are_counted_as_they_are():
    config = SMALL[0]
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        GPT(config)(tokens)
    assert counter.get_total_flops() == 16 * forward_flops_per_token(shape_of(config), 16)


def test_a_step_of_a_gpt_is_equation_3_of_the_megatron_paper():
    shape = facts.model("GPT-3").shape
    by_the_paper = sc21_step_flops(1536, 2048, 96, 12_288, 50_257)
    assert step_flops(shape, 1536, recompute=True) == pytest.approx(by_the_paper, rel=1e-12)


def test_6nd_is_gpt_3s_published_compute():
    gpt3 = facts.model("GPT-3")
    C = training_flops(gpt3.parameters.value, gpt3.tokens.value)
    assert f"{C:.2e}" == "3.14e+23" and C == pytest.approx(facts.PUBLISHED_FLOPS["GPT-3"].value, rel=0.002)


@pytest.mark.parametrize("name", ["Chinchilla", "Llama 3 405B"])
def test_6nd_is_near_what_other_papers_say(name):
    model = facts.model(name)
    C = training_flops(model.parameters.value, model.tokens.value)
    assert C == pytest.approx(facts.PUBLISHED_FLOPS[name].value, rel=0.03)


def test_6nd_leaves_out_attention_which_is_3_percent_of_gpt_3():
    shape = facts.model("GPT-3").shape
    exact = 3 * forward_flops_per_token(shape)
    assert 0.02 < exact / (6 * count_parameters(shape)) - 1 < 0.03


# days, dollars, kilowatt-hours

def test_the_million_seconds_are_a_billion():
    one_a100 = training_seconds(3.14e23, 1, 312e12, 1.0)
    assert round(one_a100) == 1_006_410_256
    years = [one_a100 / (365.25 * 86_400) / u for u in (1.0, 0.4)]
    assert [f"{y:.1f}" for y in years] == ["31.9", "79.7"]
    assert f"{training_days(3.14e23, 1024, 312e12, 0.4):.1f}" == "28.4"
    claim = facts.claim("a million seconds")
    assert all(text in claim.right for text in ("31.9 years", "79.7 years", "28.4 days"))


def test_355_are_years_on_a_v100_and_8_hours_are_355_days_on_1024():
    published = facts.GPT3_ON_ONE_V100.value
    assert training_seconds(3.14e23, 1, 28e12, 1.0) / (365.25 * 86_400) == pytest.approx(published, rel=0.002)
    assert f"{355 * 24 / 1024:.1f}" == "8.3"


@pytest.mark.parametrize(("report", "parameters", "tokens"), [(0, 174.6e9, 300e9), (1, 1008e9, 450e9)])
def test_the_megatron_papers_days_count_the_forward_pass_twice(report, parameters, tokens):
    told = facts.TRAINING_REPORTS[report]
    seconds = sc21_training_seconds(tokens, parameters, told.num_devices, told.achieved.value * 1e12)
    assert seconds / 86_400 == pytest.approx(told.days.value, rel=0.01)


def test_the_megatron_papers_52_percent_are_hfu_and_its_mfu_is_39():
    """SC'21, 1T row: 163 TFLOP/s, "52 % of peak", count recomputation. As MFU it is 39 %."""
    shape = facts.Shape(128, 25_600, 160, 160, 4 * 25_600, 51_200, 2048, tied=True, learned_positions=True, biases=True)
    step = step_flops(shape, 3072, recompute=True)
    step_s = step / (3072 * 163e12)
    assert utilisation(step, step_s, 3072, 312e12) == pytest.approx(0.52, abs=0.005)
    assert 0.385 < utilisation(step_flops(shape, 3072), step_s, 3072, 312e12) < 0.40


def test_deepseek_v3_at_its_own_price_costs_its_own_total():
    hours = facts.DEEPSEEK_V3_GPU_HOURS.value
    price = next(p for p in facts.PRICES if p.device == "H800").price.value
    assert dollars(hours * 3600 / 2048, 2048, price) == pytest.approx(5.576e6)


def test_a_month_of_100_a100_is_2300_dollars_for_the_cards_and_7400_with_all_around_them():
    month, price = 30 * 86_400, facts.ELECTRICITY.value
    assert round(kilowatt_hours(month, 100, 400) * price) == 2321
    assert round(kilowatt_hours(month, 100, 6500 / 8, facts.PUE_AVERAGE.value) * price) == 7450


def test_gpt_3s_published_energy_is_a_month_of_over_a_thousand_households():
    households = facts.GPT3_ENERGY.value / (facts.HOUSEHOLD.value / 12)
    assert 1400 < households < 1450


# memory

def test_zero_holds_what_the_papers_table_says():
    """Table 1 of the ZeRO paper in GB: (model, N): stages 1, 2, 3."""
    table = {(7.5e9, 1): (120, 120, 120), (7.5e9, 4): (52.5, 41.25, 30), (7.5e9, 64): (31.4, 16.6, 1.88),
             (128e9, 16): (608, 368, 128), (128e9, 1024): (513, 257, 2), (1e12, 64): (4187, 2218, 250),
             (1e12, 1024): (4011, 2013, 15.6)}
    for (N, n), row in table.items():
        ours = [training_memory(N, zero_stage=stage, num_devices=n).total / 1e9 for stage in (1, 2, 3)]
        assert all(abs(a - b) <= 0.9 if b > 100 else abs(a - b) <= 0.05 for a, b in zip(ours, row, strict=True))


def test_a_7b_model_holds_112_gb_and_not_28():
    assert training_memory(7e9).total == 112e9
    told = {4: (49, 38.5, 28), 8: (38.5, 26.25, 14), 64: (29.3125, 15.53125, 1.75)}
    for n, row in told.items():
        assert tuple(training_memory(7e9, zero_stage=stage, num_devices=n).total / 1e9 for stage in (1, 2, 3)) == row


def test_fp32_and_mixed_precision_hold_16_bytes_a_parameter_and_gpt_3_2800_gb():
    assert {name: p.bytes_per_parameter for name, p in PRECISIONS.items()} == {
        "fp32": 16, "mixed": 16, "mixed, fp32 gradients": 18, "pure 16-bit": 8}
    assert training_memory(175e9).total == 2.8e12 and training_memory(175e9).parameters == 350e9


def test_activations_are_the_papers_sbh_34_plus_5_as_over_h():
    shape, b = facts.model("GPT-3").shape, 1
    s, h, a = shape.sequence_length, shape.hidden_size, shape.num_heads
    assert activation_bytes_per_layer(shape, b, dropout=True) == s * b * h * 34 + 5 * a * s * s * b
    assert activation_bytes_per_layer(shape, b, dropout=True, recompute="attention") == 34 * s * b * h
    assert activation_bytes_per_layer(shape, b, dropout=True, recompute="full") == 2 * s * b * h


@pytest.mark.parametrize("config", SMALL)
@pytest.mark.parametrize("batch_size", [1, 6])
def test_the_small_gpt_holds_what_the_formulas_say(config, batch_size):
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, config.vocab_size, (batch_size, config.sequence_length))
    with record_memory(model=model, optimizer=optimizer) as log:
        for _ in range(2):
            optimizer.zero_grad()
            model(tokens, tokens.clone())[1].backward()
            optimizer.step()
    formula, measured = training_memory(model.num_parameters(), "fp32"), log.peak_by_kind
    steps = 4 * sum(1 for _ in model.parameters())  # AdamW counts its steps in a number for each tensor
    assert measured["parameters"] == formula.parameters
    assert measured["gradients"] == formula.gradients
    assert measured["optimizer_state"] == formula.optimizer_state + steps
    predicted = small_gpt_activation_bytes(config, batch_size)
    assert abs(measured["activations"] - predicted) <= 8  # the loss itself is kept too


def test_lora_trains_what_its_paper_says():
    """Hu et al. 2021, table 4: GPT-3 with r_q = r_v = 8 trains 37.7M; a checkpoint of r = 4 is 35 MiB in 16 bits."""
    shape = facts.model("GPT-3").shape
    assert lora_parameters(shape, 8) == pytest.approx(37.7e6, rel=0.002)
    assert 2 * lora_parameters(shape, 4) / 2**20 == pytest.approx(36, abs=1)
    assert lora_memory(175e9, lora_parameters(shape, 8)).total < 0.36e12


def test_lora_counts_the_matrices_that_a_torch_adapter_has():
    config = SMALL[1]
    sizes = [module.weight.shape for name, module in GPT(config).named_modules() if name.endswith("mlp.input")]
    assert lora_parameters(shape_of(config), 3, ("up",)) == sum(3 * (rows + columns) for rows, columns in sizes)


# scaling

def test_amdahl_never_exceeds_one_over_the_serial_share_and_gustafson_does():
    assert amdahl(0.9, 1) == gustafson(0.9, 1) == 1
    assert amdahl(0.9, 10**9) < 10 and math.isclose(amdahl(0.95, 8), 1 / (0.05 + 0.95 / 8))
    assert gustafson(0.9, 100) == pytest.approx(90.1)
    assert amdahl(1, 7) == pytest.approx(7)


@pytest.mark.parametrize("P", [0.0, 0.5, 0.93, 1.0])
def test_the_fit_finds_the_share_that_made_the_speed_ups(P):
    counts = [1, 2, 4, 8]
    assert fit_amdahl(counts, [amdahl(P, n) for n in counts]) == pytest.approx(P)


def test_a_fit_stays_a_share_when_the_speed_up_is_beyond_linear_or_a_slow_down():
    assert fit_amdahl([2, 4], [2.2, 4.5]) == 1 and fit_amdahl([2, 4], [0.8, 0.5]) == 0


def test_a_step_is_its_share_of_the_work_and_an_all_reduce():
    link = Link(1e-5, 1e-9)
    assert total_time(8.0, 4, 0.5, 1e-9, 1e9) == 8 / 4 + 0.5 + 1
    assert total_time(8.0, 1, 0.5, 1e-9, 1e9) == data_parallel_step(8.0, 1, 1e9, link) == 8
    assert data_parallel_step(8.0, 4, 1e9, link) == pytest.approx(2 + 6e-5 + 1.5)


def test_efficiency_is_one_when_scaling_is_perfect():
    assert strong_efficiency(8, 2, 4) == weak_efficiency(8, 8) == 1
    assert strong_efficiency(8, 4, 4) == 0.5 and weak_efficiency(8, 10) == 0.8
    assert [ideal_on_cores(n, 2) for n in (1, 2, 4)] == [1, 2, 2]


def test_the_roof_bends_where_peak_meets_bandwidth():
    a100 = facts.accelerator("A100")
    peak, bandwidth = a100.peak_flops_per_s(), a100.memory_bytes_per_s
    ridge = peak / bandwidth
    assert roofline(ridge / 2, peak, bandwidth) == pytest.approx(peak / 2) and roofline(ridge * 2, peak,
                                                                                        bandwidth) == peak
    assert matmul_intensity(4096, 4096, 4096) > ridge > matmul_intensity(1, 4096, 4096)


# data

def test_a_gpu_eats_text_slower_than_any_disk_gives_it():
    """6N FLOPs a token: even 1024 A100 ask for less than one SSD has."""
    eaten = loading_bytes_per_s(tokens_per_s(174.6e9, 1024, 312e12, 0.4))
    assert eaten == pytest.approx(4 * 1024 * 312e12 * 0.4 / (6 * 174.6e9))
    assert eaten < facts.STORAGE[0].bytes_per_s
    assert reading_s(44e12, 6.8e9) / reading_s(44e12, 6.8e9, 16) == 16


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


def rows_of_this_rank(path):
    import torch.distributed as dist

    return [row.tolist() for row in stream_rows(path, 7, dist.get_rank(), dist.get_world_size())]


def test_real_ranks_share_a_file_between_them(tmp_path):
    path = written(tmp_path, 200)
    by_rank = launch(rows_of_this_rank, path, world_size=3)
    assert sorted(row[0] for rows in by_rank for row in rows) == sorted(range(0, 196, 7))


def test_a_file_that_gives_some_rank_nothing_is_refused_before_the_first_row(tmp_path):
    with pytest.raises(ValueError, match="3 rows of 7 tokens: expected at least one for each of 4 ranks"):
        stream_rows(written(tmp_path, 22), 7, 0, 4)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        stream_rows(written(tmp_path, 100), 7, 2, 2)


# whole runs

def test_llama_3_8b_does_not_fit_one_h100_and_fits_eight_sharded():
    model, h100 = facts.model("Llama 3 8B"), facts.accelerator("H100")
    assert not plan_run(model, h100).fits and not plan_run(model, h100, 8, zero_stage=0).fits
    run = plan_run(model, h100, 8, zero_stage=3)
    assert run.fits and run.needed.optimizer_state == 12 * model.parameters.value / 8
    assert run.days == pytest.approx(6 * 8.03e9 * 15e12 / (8 * 989.5e12 * 0.4) / 86_400)
    assert run.usd == pytest.approx(run.days * 24 * 8 * 2.69)


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


@pytest.mark.parametrize(("mistake", "said"), [
    (lambda: training_seconds(1e20, 8, 312e12, 40), "is it a percentage"),
    (lambda: amdahl(90, 8), "parallel_share=90: expected a share from 0 to 1: is it"),
    (lambda: training_flops(0, 1e9), "num_parameters=0"),
    (lambda: training_memory(7e9, "bf16"), "expected one of fp32, mixed"),
    (lambda: training_memory(7e9, zero_stage=4), "expected 0, 1, 2 or 3"),
    (lambda: training_memory(7e9, num_devices=0), "num_devices=0"),
    (lambda: activation_bytes_per_layer(facts.model("GPT-3").shape, 1, recompute="selective"), "none, attention, full"),
    (lambda: kilowatt_hours(1, 1, 400, pue=0.9), "1 or more"),
    (lambda: lora_parameters(facts.model("GPT-3").shape, 8, ("gate",)), "expected different ones of q, k"),
    (lambda: lora_parameters(facts.model("GPT-3").shape, 8, ("q", "q")), "expected different ones"),
    (lambda: fit_amdahl([1, 1], [1, 1]), "one count above 1"),
    (lambda: fit_amdahl([1, 2], [1]), "the same length"),
    (lambda: total_time(1, 2, -1, 0, 0), "alpha_s=-1"),
    (lambda: step_flops(facts.model("GPT-3").shape, 1.5), "batch_size=1.5"),
])
def test_a_mistake_is_told_what_was_given_and_what_was_expected(mistake, said):
    with pytest.raises(ValueError, match=said):
        mistake()
