"""From FLOPs to days, dollars and kilowatt-hours: published runs come out; and how fast training eats text."""

import pytest

from course_lib import facts
from course_lib.costs.flops import matmul_intensity, roofline, step_flops, utilisation
from course_lib.costs.money import (
    dollars,
    kilowatt_hours,
    reading_s,
    sc21_training_seconds,
    tokens_per_s,
    training_days,
    training_seconds,
)

YEAR_S, GPT_3 = 365.25 * 86_400, 3.14e23  # FLOPs of its training


def test_the_million_seconds_are_a_billion():
    on_v100, one_a100 = training_seconds(GPT_3, 1, 28e12, 1.0), training_seconds(GPT_3, 1, 312e12, 1.0)
    assert on_v100 / YEAR_S == pytest.approx(facts.GPT3_ON_ONE_V100.value, rel=0.002), "355 are years"
    assert round(one_a100) == 1_006_410_256
    told = [f"{one_a100 / YEAR_S / u:.1f} years" for u in (1.0, 0.4)]
    told += [f"{training_days(GPT_3, 1024, 312e12, 0.4):.1f} days"]
    assert told == ["31.9 years", "79.7 years", "28.4 days"]
    assert all(text in facts.claim("a million seconds").right for text in told)


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


def test_gpt_3s_published_energy_is_that_of_its_v100_hours():
    v100 = next(report for report in facts.TRAINING_REPORTS if report.device == "V100")
    seconds = training_seconds(GPT_3, v100.num_devices, v100.achieved.value * 1e12, 1.0)
    assert seconds / 86_400 == pytest.approx(v100.days.value, rel=0.005)
    published = kilowatt_hours(seconds, v100.num_devices, facts.GPT3_POWER.value, facts.GPT3_PUE.value)
    assert published == pytest.approx(facts.GPT3_ENERGY.value, rel=0.005)


def test_the_4_million_dollars_of_gpt_3_are_one_price_of_2020_and_prices_of_2026_give_less():
    price = facts.GPT3_COSTS[0].value / (facts.GPT3_ON_ONE_V100.value * 365.25 * 24)
    run_s, prices = training_seconds(GPT_3, 1024, 312e12, 0.4), facts.hourly_prices("A100")
    low, high = (dollars(run_s, 1024, prices[place].price.value) / 1e6 for place in (0, -1))
    told = f"{price:.2f} dollars", f"{low:.1f} to {high:.1f} million"
    assert told == ("1.48 dollars", "1.0 to 2.4 million")
    assert all(text in facts.claim("GPT-3 for millions").right for text in told)


def test_the_roof_bends_where_peak_meets_bandwidth_and_one_row_at_a_time_cannot_have_an_mfu_of_60_percent():
    for name, low, high in (("H100", 250, 350), ("A100", 100, 200)):
        device = facts.accelerator(name)
        of = peak, bandwidth = device.peak_flops_per_s(), device.memory_bytes_per_s
        ridge = peak / bandwidth
        assert roofline(ridge / 2, *of) == pytest.approx(peak / 2) and roofline(ridge * 2, *of) == peak
        assert matmul_intensity(4096, 4096, 4096) > high > ridge > low > matmul_intensity(1, 4096, 4096)
        if name == "H100":
            assert f"{roofline(matmul_intensity(1, 4096, 4096), *of) / peak:.1%}" == "0.3%"
    assert "0.3 %" in facts.claim("inference MFU").right


def test_a_gpu_eats_text_slower_than_any_disk_gives_it():
    """6N FLOPs a token: even 1024 A100 ask for less than one SSD has."""
    eaten = 4 * tokens_per_s(174.6e9, 1024, 312e12, 0.4)  # a token is 4 bytes, as a number and as English
    assert eaten == pytest.approx(4 * 1024 * 312e12 * 0.4 / (6 * 174.6e9))
    assert eaten < facts.STORAGE[0].bytes_per_s
    assert reading_s(44e12, 6.5e9) / reading_s(44e12, 6.5e9, 16) == 16
