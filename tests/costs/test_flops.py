"""Parameters and FLOPs counted from a shape: against published numbers, and against the tensors of the small GPT."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib import facts
from course_lib.costs.flops import (
    count_active_parameters,
    count_parameters,
    forward_flops_per_token,
    sc21_step_flops,
    step_flops,
    training_flops,
)
from course_lib.reference import GPT, GPTConfig
from course_lib.why_distribute import shape_of

SHAPED = [model for model in facts.MODELS if model.shape]
SMALL = [GPTConfig(), GPTConfig(num_layers=2, hidden_size=96, num_heads=3, vocab_size=512, sequence_length=128)]


# The text model of Scout has 107.8e9: the part that reads images is in Meta's number. Moonshot rounds 1.03e12 to 1T.
COARSE = {"BERT-Large": 0.02, "Nemotron-4 340B": 0.004, "Llama 4 Scout": 0.012, "Llama 4 Maverick": 0.002,
          "Kimi K2": 0.03}


def last_digit(published: float) -> float:
    """Half of the last digit that was printed, in billions: 8.2 may be anything from 8.15 to 8.25."""
    digits = f"{published / 1e9:g}".partition(".")[2]
    return 0.5 * 10.0 ** -len(digits) * 1e9


@pytest.mark.parametrize("model", SHAPED, ids=lambda model: model.name)
def test_a_published_shape_counts_to_the_published_number_of_parameters(model):
    # BERT has token types and a pooler besides, and its authors round to 340M
    published = model.parameters.value
    tolerance = max(last_digit(published), COARSE.get(model.name, 0.001) * published)
    assert abs(count_parameters(model.shape) - published) <= tolerance


@pytest.mark.parametrize("model", [model for model in SHAPED if model.active], ids=lambda model: model.name)
def test_what_a_token_passes_through_counts_to_the_published_number(model):
    """Some count the embedding that is looked up, some do not: the published number is one of the two, as rounded."""
    whole = count_active_parameters(model.shape)
    either = (whole, whole - model.shape.vocab_size * model.shape.hidden_size)
    published = model.active_parameters
    assert min(abs(counted - published) for counted in either) <= max(last_digit(published), 0.02 * published)


@pytest.mark.parametrize("config", SMALL)
def test_the_small_gpt_has_exactly_the_parameters_and_does_exactly_the_flops_counted(config):
    model, shape, tokens = GPT(config), shape_of(config), torch.zeros(3, config.sequence_length, dtype=torch.int64)
    assert count_parameters(shape) == count_active_parameters(shape) == model.num_parameters()
    assert count_parameters(shape, include_embeddings=False) == model.num_parameters(include_embeddings=False)
    with FlopCounterMode(display=False) as forward:
        loss = model(tokens, tokens)[1]
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    with FlopCounterMode(display=False) as short, torch.no_grad():
        model(tokens[:1, :16])
    assert forward.get_total_flops() == 3 * config.sequence_length * forward_flops_per_token(shape)
    assert short.get_total_flops() == 16 * forward_flops_per_token(shape, 16)
    assert forward.get_total_flops() + backward.get_total_flops() == step_flops(shape, 3)


def test_a_step_of_a_gpt_is_equation_3_of_the_megatron_paper_and_6nd_leaves_out_attention_of_3_percent():
    shape = facts.model("GPT-3").shape
    by_the_paper = sc21_step_flops(1536, 2048, 96, 12_288, 50_257)
    assert step_flops(shape, 1536, recompute=True) == pytest.approx(by_the_paper, rel=1e-12)
    assert 0.02 < 3 * forward_flops_per_token(shape) / (6 * count_parameters(shape)) - 1 < 0.03


@pytest.mark.parametrize("name, off", [("GPT-3", 0.002), ("Chinchilla", 0.03), ("Llama 3 405B", 0.03)])
def test_6nd_is_the_published_compute(name, off):
    model = facts.model(name)
    C = training_flops(model.parameters.value, model.tokens.value)
    assert C == pytest.approx(facts.PUBLISHED_FLOPS[name].value, rel=off)
