"""Claims about the reference GPT: its sizes, its start, its causality, its parts equal to torch's own."""

import math

import pytest
import torch
from torch import nn

from course_lib.reference import GPT, Block, GPTConfig

SMALL = GPTConfig(num_layers=2, hidden_size=24, num_heads=3, vocab_size=50, sequence_length=10)


def random_tokens(config: GPTConfig, rows: int = 2) -> torch.Tensor:
    return torch.randint(config.vocab_size, (rows, config.sequence_length))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("config", [SMALL, GPTConfig()])
def test_the_parameter_count_equals_the_formula_and_embedding_and_head_are_one_parameter_with_one_gradient(config):
    L, D, V, T = config.num_layers, config.hidden_size, config.vocab_size, config.sequence_length
    without_embeddings, model = L * (12 * D**2 + 13 * D) + 2 * D, GPT(config)
    assert model.num_parameters(include_embeddings=False) == without_embeddings
    assert model.num_parameters() == without_embeddings + (V + T) * D
    model(random_tokens(config), random_tokens(config))[1].backward()
    assert model.head.weight is model.embedding.token.weight and "head.weight" not in dict(model.named_parameters())
    assert model.head.weight.grad.abs().sum(dim=1).count_nonzero() == V


def test_the_start_is_that_of_gpt_2():
    model = GPT(GPTConfig(num_layers=8, hidden_size=128))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            expected = 0.02 / math.sqrt(2 * 8) if "output" in name else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_the_loss_is_the_mean_cross_entropy_of_the_logits_and_about_the_log_of_the_vocabulary_at_the_start():
    model = GPT(GPTConfig())
    tokens, targets = random_tokens(model.config, rows=8), random_tokens(model.config, rows=8)
    logits, loss = model(tokens, targets)
    assert logits.shape == (8, 64, 256) and model(tokens)[1] is None
    torch.testing.assert_close(loss, -logits.log_softmax(-1).gather(-1, targets[..., None]).mean())
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


def test_a_later_token_never_changes_an_earlier_logit():
    model, tokens = GPT(SMALL).eval(), random_tokens(SMALL)
    before, _ = model(tokens)
    for changed in range(SMALL.sequence_length):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % SMALL.vocab_size
        after, _ = model(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert (after[:, changed:] != before[:, changed:]).any(dim=-1).all()


def test_a_block_and_its_gradients_equal_torch_transformer_encoder_layer():
    D, block, gelu = SMALL.hidden_size, Block(SMALL), nn.GELU(approximate="tanh")
    theirs = nn.TransformerEncoderLayer(D, 3, 4 * D, 0.0, gelu, batch_first=True, norm_first=True)
    names = {"norm1.": "attention_norm.", "self_attn.in_proj_": "attention.qkv.", "norm2.": "mlp_norm.",
             "self_attn.out_proj.": "attention.output.", "linear1.": "mlp.input.", "linear2.": "mlp.output."}
    pairs = [(f"{a}{kind}", f"{b}{kind}") for a, b in names.items() for kind in ("weight", "bias")]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
    theirs.load_state_dict({a: block.state_dict()[b] for a, b in pairs})
    x = torch.randn(2, 10, D)
    mine = block(x)
    reference = theirs(x, src_mask=nn.Transformer.generate_square_subsequent_mask(10), is_causal=True)
    torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    reference.square().mean().backward()
    for a, b in pairs:
        torch.testing.assert_close(block.get_parameter(b).grad, theirs.get_parameter(a).grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wrong, message", [
    (lambda: GPTConfig(num_layers=0), "num_layers must be an integer of at least 1, got 0"),
    (lambda: GPTConfig(vocab_size=256.0), "vocab_size must be an integer of at least 1, got 256.0"),
    (lambda: GPTConfig(hidden_size=64, num_heads=5), "hidden_size=64, num_heads=5"),
    (lambda: GPTConfig(dropout=1.0), r"dropout must be a probability in \[0, 1\), got 1.0"),
    (lambda: GPT(SMALL)(torch.zeros(10).long()), r"at most sequence_length=10, got shape \(10"),
    (lambda: GPT(SMALL)(torch.zeros(2, 11).long()), r"at most sequence_length=10, got shape \(2"),
])
def test_what_no_model_can_have_is_refused_with_what_was_given(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
