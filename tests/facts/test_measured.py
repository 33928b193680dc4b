"""The course's formulas against steps that were measured on a GPU, by its allocator and its clock."""

from dataclasses import replace

import pytest

from course_lib.costs.flops import activation_bytes, count_parameters, roofline, step_flops, utilisation
from course_lib.facts import MeasuredTable, accelerator, gpu_day, measured_on_gpu
from course_lib.reference import GPTConfig
from course_lib.why_distribute import shape_of

MEDIUM = GPTConfig(num_layers=24, hidden_size=1024, num_heads=16, vocab_size=50_304, sequence_length=1024)
SHAPES = {"step, ": (shape_of(MEDIUM), 8),
          "step of 124M, ": (shape_of(replace(MEDIUM, num_layers=12, hidden_size=768, num_heads=12)), 32)}
EAGER = [row["step"] for row in gpu_day()["rows"] if row["step"].startswith("step") and "compiled" not in row["step"]]


def described(step):
    name = max((name for name in SHAPES if step.startswith(name)), key=len)
    precision, attention, *policy = step.removeprefix(name).split(", ")
    kept = policy[0].removeprefix("recompute ") if policy else {"fused": "selective", "written out": "none"}[attention]
    return *SHAPES[name], precision, kept


@pytest.mark.parametrize("step", [step for step in EAGER if "autocast" not in step])
def test_a_forward_pass_keeps_what_the_formula_says_to_one_percent_if_its_logits_have_the_models_dtype(step):
    shape, rows, precision, policy = described(step)
    w = 2 if precision == "bf16" else 4
    logits = shape.vocab_size * shape.sequence_length * rows
    predicted = activation_bytes(shape, rows, recompute=policy, bytes_per_number=w) - (4 - w) * logits
    assert measured_on_gpu(step)["kept_bytes"] == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("step", EAGER)
def test_its_parameters_and_its_mfu_are_those_of_the_formulas(step):
    shape, rows, precision, _ = described(step)
    found, number_format = measured_on_gpu(step), {"autocast": "bf16"}.get(precision, precision)
    assert found["parameters"] == count_parameters(shape)
    peak = accelerator("H100").peak_flops_per_s(number_format)
    assert found["mfu"] == pytest.approx(utilisation(step_flops(shape, rows), found["step_s"], 1, peak), rel=1e-3)


def test_autocast_keeps_a_quarter_more_than_16_bits_a_number():
    shape, rows, *_ = described("step, autocast, fused")
    kept = measured_on_gpu("step, autocast, fused")["kept_bytes"]
    assert 1.25 < kept / activation_bytes(shape, rows, recompute="selective", bytes_per_number=2) < 1.35


def test_no_product_was_faster_than_the_roofline_of_the_data_sheet():
    found, card = measured_on_gpu("products"), accelerator("H100")
    for n, tflops in found["tflops"].items():
        intensity = 2 * int(n) * 8192**2 / (2 * (2 * int(n) * 8192 + 8192**2))
        assert tflops * 1e12 <= roofline(intensity, card.peak_flops_per_s("bf16"), card.memory_bytes_per_s)


def test_the_name_of_a_step_that_there_is_not_is_answered_with_all_names():
    with pytest.raises(ValueError, match="no step is called 'x': expected one of .*products"):
        measured_on_gpu("x")


def test_a_table_has_the_prediction_the_measurement_and_their_ratio_in_the_unit_asked_for():
    table = MeasuredTable({"kept": ("kept_predicted", "step, fp32, written out", "kept_bytes"),
                           "to the card": (64e9, "copies", "bytes_per_s", "pinned to card")}, "GB")
    assert [row[1:] for row in table.cells()[1:]] == [("27.5", "27.5", "1.00"), ("64", "54.7", "0.85")]
    assert "2026-11-27" in repr(table) and "<td>0.85</td>" in table._repr_html_()
    with pytest.raises(ValueError, match="unknown unit 'GiB': expected one of .*'GB'"):
        MeasuredTable({}, "GiB")
