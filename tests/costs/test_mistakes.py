"""Every formula says what it was given and what it expected."""

import pytest

from course_lib import facts
from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.costs.flops import step_flops, training_flops
from course_lib.costs.memory import lora_parameters, training_memory
from course_lib.costs.money import kilowatt_hours, training_seconds
from course_lib.costs.scaling import amdahl, fit_amdahl, total_time


@pytest.mark.parametrize(("mistake", "said"), [
    (lambda: training_seconds(1e20, 8, 312e12, 40), "is it a percentage"),
    (lambda: amdahl(90, 8), "parallel_share=90: expected a share from 0 to 1: is it"),
    (lambda: training_flops(0, 1e9), "num_parameters=0"),
    (lambda: training_memory(7e9, "bf16"), "expected one of fp32, mixed"),
    (lambda: training_memory(7e9, zero_stage=4), "expected 0, 1, 2 or 3"),
    (lambda: training_memory(7e9, num_devices=0), "num_devices=0"),
    (lambda: activation_bytes_per_layer(facts.model("GPT-3").shape, 1, recompute="attention"), "none, selective, full"),
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
