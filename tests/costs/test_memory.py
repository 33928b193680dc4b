"""What training keeps in memory: the papers' tables come out, and the small GPT holds what the formulas say."""

import pytest
import torch

from course_lib import facts
from course_lib.costs.activations import activation_bytes_per_layer
from course_lib.costs.memory import (
    OPTIMIZERS,
    PRECISIONS,
    Memory,
    device_memory,
    lora_memory,
    lora_parameters,
    state_bytes_per_parameter,
    table_1,
    training_memory,
)
from course_lib.costs.sharding import sent_bytes
from course_lib.facts import PAPER_TABLE_1
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import record_memory
from course_lib.why_distribute import shape_of, small_gpt_activation_bytes

SMALL = [GPTConfig(), GPTConfig(num_layers=2, hidden_size=96, num_heads=3, vocab_size=512, sequence_length=128)]


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
    assert activation_bytes_per_layer(shape, b, dropout=True, recompute="selective") == 34 * s * b * h
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


def test_table_1_of_the_paper_comes_out_of_the_formulas_cell_by_cell():
    def unit_of_last_digit(printed):
        return 10.0 ** -len(str(printed).partition(".")[2]) if printed != int(printed) else 1.0

    found = table_1()
    assert found.keys() == PAPER_TABLE_1.keys() and len(found) * 3 == 54
    for cell, printed in PAPER_TABLE_1.items():
        for ours, theirs in zip(found[cell], printed):
            assert abs(ours - theirs) < unit_of_last_digit(theirs), (cell, ours, theirs)


def test_each_stage_shares_out_one_kind_more_and_offload_moves_the_shards_to_the_host():
    P, N = 1000, 4
    assert state_bytes_per_parameter() == 12
    assert device_memory(P, N, 0) == Memory(2000, 2000, 12000)
    assert device_memory(P, N, 1) == Memory(2000, 2000, 3000)
    assert device_memory(P, N, 2) == Memory(2000, 500, 3000)
    assert device_memory(P, N, 3) == Memory(500, 500, 3000)
    assert device_memory(P, N, 2, offload=True) == Memory(2000, 0, 0, host=3500)
    assert device_memory(P, N, 3, "fp32", "sgd with momentum", offload=True) == Memory(0, 0, 0, host=3000)
    assert [sent_bytes(P, N, stage, 4) / (3 / 4 * 4 * P) for stage in (0, 1, 2, 3)] == [2, 2, 2, 3]


@pytest.mark.parametrize("given, words", [
    ({"stage": 4}, "stage=4: expected 0"), ({"num_devices": 0}, "num_devices=0"), ({"precision": "fp8"}, "one of fp32"),
    ({"optimizer": "lion"}, "one of adam"), ({"num_parameters": 0}, "num_parameters=0"),
    ({"stage": 0, "offload": True}, "offload=True with stage=0"),
])
def test_numbers_that_make_no_sense_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        device_memory(**({"num_parameters": 1, "num_devices": 1, "stage": 1} | given))


def test_every_precision_and_optimiser_has_a_formula():
    totals = {(p, o): device_memory(1, 1, 0, p, o).total for p in PRECISIONS for o in OPTIMIZERS}
    assert (totals["mixed", "adam"], totals["fp32", "adam"], totals["fp32", "sgd"]) == (16, 16, 8)
    assert totals["mixed, fp32 gradients", "adam"] == 18 and totals["pure 16-bit", "adam"] == 8


def test_a_prediction_has_the_kinds_of_a_measurement_and_says_what_is_on_the_host():
    with record_memory() as log:
        pass
    assert Memory(1, 2, 3).by_kind().keys() <= log.by_kind.keys()
    assert str(Memory(2e9, 0, 0, host=3e9)) == (
        "2 GB: parameters 2 GB, gradients 0 GB, optimizer state 0 GB; on the host 3 GB")
    assert str(Memory(2e9, 2e9, 8e9, 1e9)) == (
        "13 GB: parameters 2 GB, gradients 2 GB, optimizer state 8 GB, activations 1 GB")
