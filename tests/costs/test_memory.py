"""What training keeps in memory: the papers' tables come out, and the small GPT holds what the formulas say."""

import pytest
import torch

from course_lib import facts
from course_lib.costs.memory import (
    PRECISIONS,
    Memory,
    device_memory,
    lora_memory,
    lora_parameters,
    state_bytes_per_parameter,
    table_1,
    training_memory,
)
from course_lib.facts import PAPER_TABLE_1
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import record_memory
from course_lib.why_distribute import shape_of, small_gpt_activation_bytes

SMALL = [GPTConfig(), GPTConfig(num_layers=2, hidden_size=96, num_heads=3, vocab_size=512, sequence_length=128)]


BYTES = {"fp32": (4, 4, 0, 4), "mixed": (2, 2, 4, 4), "mixed, fp32 gradients": (2, 4, 4, 4),
         "pure 16-bit": (2, 2, 0, 2)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_device_holds_what_counting_number_by_number_gives_in_every_stage(stage, precision):
    """Of 24 numbers on n devices: its own are every n-th. Weights, gradients, a master copy, moments of each."""
    N, adapted = 24, 12
    weight, gradient, master, moment = BYTES[precision]
    for optimizer, moments in (("adam", 2 * moment), ("adam8bit", 2), ("sgd with momentum", moment), ("sgd", 0)):
        assert state_bytes_per_parameter(precision, optimizer) == master + moments
        for n in (1, 2, 4):
            def held(bytes_of_one, numbers, shared_from, n=n):
                return sum(bytes_of_one for number in range(numbers) if stage < shared_from or number % n == 0)

            own = Memory(held(weight, N, 3), held(gradient, N, 2), held(master + moments, N, 1))
            assert training_memory(N, precision, stage, n, optimizer=optimizer) == own
            assert training_memory(N, precision, stage, n, 7.0, optimizer).total == own.total + 7
            assert device_memory(N, n, stage, precision, optimizer) == own
            if stage:  # the optimiser's work on the host, and what is not sharded stays here
                host = held(max(master, weight) + gradient + moments, N, 0)
                assert device_memory(N, n, stage, precision, optimizer, offload=True) == Memory(
                    own.parameters if stage < 3 else 0, own.gradients if stage < 2 else 0, 0, host=host)
            if precision == "mixed":  # frozen weights of 4 bits are shared out in stage 3 alone
                lora = lora_memory(N, adapted, 0.5, 7.0, stage, n, optimizer)
                assert lora == Memory(held(0.5, N, 3) + held(2, adapted, 3), held(2, adapted, 2),
                                      held(4 + moments, adapted, 1), 7.0)


def test_gpt_3_holds_2800_gb():
    assert training_memory(175e9).total == 2.8e12 and lora_memory(7e9, 1e6).parameters == 14.002e9


@pytest.mark.parametrize("config, batch_size", [(SMALL[0], 1), (SMALL[1], 6)])
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


def test_lora_trains_what_its_paper_says_and_a_torch_adapter_has():
    """Hu et al. 2021, table 4: GPT-3 with r_q = r_v = 8 trains 37.7M; a checkpoint of r = 4 is 35 MiB in 16 bits."""
    shape = facts.model("GPT-3").shape
    assert lora_parameters(shape, 8) == pytest.approx(37.7e6, rel=0.002)
    assert 2 * lora_parameters(shape, 4) / 2**20 == pytest.approx(36, abs=1)
    sizes = {kind: [module.weight.shape for name, module in GPT(SMALL[1]).named_modules() if name.endswith(kind)]
             for kind in ("mlp.input", "mlp.output", "attention.output")}
    for matrices, kinds in ((("up",), ["mlp.input"]), (("o", "down"), ["attention.output", "mlp.output"])):
        counted = sum(3 * (rows + columns) for kind in kinds for rows, columns in sizes[kind])
        assert counted and lora_parameters(shape_of(SMALL[1]), 3, matrices) == counted
    llama = facts.model("Llama 3 8B").shape  # 8 key heads of 32, gated: by hand
    assert lora_parameters(llama, 2, ("k", "o", "gate")) == 32 * 2 * ((4096 + 1024) + (4096 + 4096) + (4096 + 14_336))


def test_table_1_of_the_paper_comes_out_of_the_formulas_cell_by_cell():
    found = table_1()
    assert found.keys() == PAPER_TABLE_1.keys() and len(found) * 3 == 54
    for cell, printed in PAPER_TABLE_1.items():
        for ours, theirs in zip(found[cell], printed):
            digits = 0 if theirs == int(theirs) else len(str(theirs).partition(".")[2])
            assert abs(ours - theirs) < 10.0**-digits, (cell, ours, theirs)


def test_a_prediction_has_the_kinds_of_a_measurement_and_says_what_is_on_the_host(snapshot):
    with record_memory() as log:
        pass
    assert Memory(1, 2, 3).by_kind().keys() <= log.by_kind.keys()
    assert str(Memory(2e9, 0, 0, host=3e9)) == snapshot
    assert str(Memory(2e9, 2e9, 8e9, 1e9)) == snapshot
