"""Every published number says where it is from."""

import dataclasses

import pytest

from course_lib import facts
from course_lib.facts import MEASURED_THROUGHPUT, Fact, interconnect, measured_collectives


def test_a_number_without_source_unit_or_date_is_refused():
    for missing in ({"source": ""}, {"unit": ""}, {"date": "recently"}, {"value": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(missing))):
            Fact(**({"value": 1.0, "unit": "GB/s", "source": "a paper", "date": "2020"} | missing))
    fact = Fact(330, "W", "a paper", "2021", unverified=True)
    assert (str(fact), fact.doubt) == ("330 W (a paper, 2021, unverified)", "?") and facts.PUE_AVERAGE.doubt == ""


def numbers_without_source(value: object, path: str) -> list[str]:
    """Where in a table of hardware a number stands that is no Fact. Counts and years describe, they claim nothing."""
    if value is None or isinstance(value, Fact | str | bool):
        return []
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in numbers_without_source(part, f"{path}.{key}")]
    if isinstance(value, tuple | list):
        return [found for part in value for found in numbers_without_source(part, path)]
    if dataclasses.is_dataclass(value):
        name = getattr(value, "name", getattr(value, "device", ""))
        return [found for field in dataclasses.fields(value)
                if field.name not in ("year", "per_node", "cards_per_node", "num_devices", "num_nodes", "neighbours",
                                      "num_ranks", "num_chunks")
                for found in numbers_without_source(getattr(value, field.name), f"{path}[{name}].{field.name}")]
    return [path]


@pytest.mark.parametrize("table", ["ACCELERATORS", "MEASURED_MATMUL", "SYSTEMS", "PRICES", "LINKS", "STORAGE",
                                   "CORPORA", "A100_MEMORY", "MEASURED_COLLECTIVES", "SHARED_CLUSTER",
                                   "TRAINING_REPORTS", "BUBBLE_RATES"])
def test_no_number_in_the_hardware_tables_stands_without_its_source(table):
    assert numbers_without_source(getattr(facts, table), table) == []


def test_every_device_has_peaks_in_order_and_links_that_exist():
    for device in facts.ACCELERATORS:
        assert device.half_precision in device.peaks
        floats = [device.peaks[name].value for name in ("fp64", "fp32", "tf32", "bf16", "fp8",
                                                        "fp4") if name in device.peaks]
        assert floats == sorted(floats), device.name
        assert all(interconnect(name) for name in (*device.links, device.host))
    with pytest.raises(ValueError, match="V100 has no peak for 'bf16'"):
        facts.accelerator("V100").peak_flops_per_s("bf16")


def test_an_unknown_name_is_answered_with_all_names_the_nearest_first():
    for look_up, name, nearest in [(facts.accelerator, "RTX4090", "RTX 4090, RTX 5090"),
                                   (facts.accelerator, "h100", "H100"),
                                   (facts.accelerator, 3, "B300"), (facts.model, "Llama 3 80B", "Llama 3 8B"),
                                   (interconnect, "infiniband xdr", "InfiniBand XDR")]:
        with pytest.raises(ValueError, match=f"expected one of {nearest}, "):
            look_up(name)


def test_a_driver_s_name_finds_its_device_and_no_other():
    reported = {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100 PCIe",
                "NVIDIA H200": "H200", "NVIDIA H20": "H20",
                "NVIDIA A100-SXM4-40GB": "A100 40GB", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA GH200 480GB": "GH200",
                "NVIDIA GB200": "GB200", "NVIDIA B200": "B200", "NVIDIA GeForce RTX 4090": "RTX 4090",
                "Tesla V100-SXM2-32GB": "V100", "AMD Instinct MI300X": "MI300X"}
    assert {name: facts.reported_as(name).name for name in reported} == reported
    assert facts.reported_as("NVIDIA GeForce GTX 1080") is None


def test_devices_that_belong_together_differ_in_what_the_data_sheets_say_alone():
    for sold, instead in (("A800", "A100"), ("H800", "H100")):  # to China: slower wires, the same chips
        export, plain = facts.accelerator(sold), facts.accelerator(instead)
        assert export.peak_flops_per_s() == plain.peak_flops_per_s() and export.memory.value == plain.memory.value
        assert interconnect(export.links[0]).one_way.value < interconnect(plain.links[0]).one_way.value
    for variant in facts.hardware.DEVICE_VARIANTS:
        whole = facts.accelerator(variant.name.split()[0]).power
        assert 0 < variant.power_share <= 1 and variant.power_share == variant.device.power.value / whole.value
    for device in facts.ACCELERATORS:  # cards without NVLink share what their server has
        assert (device.cards_per_node > 0) == device.links[0].startswith("PCIe")
    for measured in facts.MEASURED_MATMUL:
        share = measured.achieved.value * 1e12 / facts.accelerator(measured.device).peak_flops_per_s()
        assert 0.7 < share < 0.9 or measured.device == "MI300X" and 0.5 < share < 0.6


def test_a_shape_refuses_what_cannot_be():
    gpt3 = facts.model("GPT-3").shape
    for wrong, said in [({"num_layers": 0}, "num_layers=0"), ({"num_kv_heads": 5}, "expected a multiple"),
                        ({"num_heads": 7, "num_kv_heads": 7}, "or head_dim"),
                        ({"active_experts": 2}, "at most num_experts")]:
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(gpt3, **wrong)


def test_a_claim_says_what_is_right_and_how_it_went_wrong():
    assert len({claim.name for claim in facts.CLAIMS}) == len(facts.CLAIMS)
    assert all(0 <= claim.chapter <= 12 for claim in facts.CLAIMS)
    assert "31.9 years" in facts.claim("a million seconds").right
    with pytest.raises(ValueError, match="how"):
        dataclasses.replace(facts.CLAIMS[0], how="")


def test_a_device_among_more_is_never_faster_a_fixed_batch_is_dealt_out_and_layers_are_cut_where_key_heads_can_be():
    for run in MEASURED_THROUGHPUT:
        assert list(run.relative().values()) == sorted(run.relative().values(), reverse=True)
        assert run.tokens.keys() == run.per_device.keys()
        whole = {n * tokens for n, tokens in run.tokens.items()}
        assert len(whole if run.fixed == "batch" else set(run.tokens.values())) == 1
    for runs in facts.SPLIT_RUNS.values():  # cut further, each device is slower and more sequences fit
        assert [run.t for run in runs] == [2, 4, 8, 16, 32]
        rates, batches = [run.per_device.value for run in runs], [run.max_batch for run in runs]
        assert rates == sorted(rates, reverse=True) and batches == sorted(batches)
    for name, t in facts.PUBLISHED_T.items():
        assert facts.model(name).shape.num_kv_heads % t.value == 0


def test_the_measured_throughput_of_1f1b_follows_from_its_bubble_rates_to_two_percent():
    for table in facts.BUBBLE_RATES:
        least = min(table.rates)
        assert table.rates.keys() == table.throughput.keys()
        for m in table.rates:
            computed = (1 - table.rates[m]["1F1B"].value) / (1 - table.rates[least]["1F1B"].value)
            measured = table.throughput[m]["1F1B"].value / table.throughput[least]["1F1B"].value
            assert abs(computed / measured - 1) < 0.02, (table.model, m)


def test_longer_all_reduces_are_never_slower_and_a_link_counts_bytes_in_one_direction():
    for measured in measured_collectives("all_reduce"):
        rates = [measured.bus_bandwidth[size].value for size in sorted(measured.bus_bandwidth)]
        assert rates == sorted(rates)
    assert interconnect("NVLink 3 (A100)").one_way_bytes_per_s == 600e9 / 2
    assert interconnect("InfiniBand QDR").one_way_bytes_per_s == 40e9 / 8 * 8 / 10
