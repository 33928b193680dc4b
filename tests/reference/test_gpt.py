"""Claims about the reference GPT: its sizes, its start, its causality, its parts equal to torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.reference import GPT, Block, CausalSelfAttention, GPTConfig, causal_attention

SMALL = GPTConfig(num_layers=2, hidden_size=24, num_heads=3, vocab_size=50, sequence_length=10)


def random_tokens(config: GPTConfig, rows: int = 2) -> torch.Tensor:
    return torch.randint(config.vocab_size, (rows, config.sequence_length))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("config", [SMALL, GPTConfig()])
def test_the_parameter_count_equals_the_formula(config):
    L, D, V, T = config.num_layers, config.hidden_size, config.vocab_size, config.sequence_length
    without_embeddings = L * (12 * D**2 + 13 * D) + 2 * D
    assert GPT(config).num_parameters(include_embeddings=False) == without_embeddings
    assert GPT(config).num_parameters() == without_embeddings + (V + T) * D


def test_the_embedding_and_the_head_are_one_parameter_with_one_gradient():
    model = GPT(SMALL)
    model(random_tokens(SMALL), random_tokens(SMALL))[1].backward()
    assert model.head.weight is model.embedding.token.weight
    assert "head.weight" not in dict(model.named_parameters())
    assert model.head.weight.grad.abs().sum(dim=1).count_nonzero() == SMALL.vocab_size


def test_the_loss_at_the_start_is_about_the_log_of_the_vocabulary():
    model = GPT(GPTConfig())
    tokens = random_tokens(model.config, rows=8)
    assert model(tokens, random_tokens(model.config, rows=8))[1].item() == pytest.approx(math.log(256), abs=0.1)


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


def test_the_loss_is_the_mean_cross_entropy_of_the_logits():
    model, tokens, targets = GPT(SMALL), random_tokens(SMALL), random_tokens(SMALL)
    logits, loss = model(tokens, targets)
    picked = logits.log_softmax(-1).gather(-1, targets[..., None])
    assert logits.shape == (2, 10, 50)
    torch.testing.assert_close(loss, -picked.mean())
    assert model(tokens)[1] is None


def test_a_later_token_never_changes_an_earlier_logit():
    model, tokens = GPT(SMALL).eval(), random_tokens(SMALL)
    before, _ = model(tokens)
    for changed in range(SMALL.sequence_length):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % SMALL.vocab_size
        after, _ = model(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert (after[:, changed:] != before[:, changed:]).any(dim=-1).all()


def test_attention_and_its_gradients_equal_torch_scaled_dot_product_attention():
    ours = [torch.randn(2, 3, 10, 8, requires_grad=True) for _ in range(3)]
    torchs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    mine, theirs = causal_attention(*ours), F.scaled_dot_product_attention(*torchs, is_causal=True)
    torch.testing.assert_close(mine, theirs)
    weights = torch.randn_like(mine)
    (mine * weights).sum().backward()
    (theirs * weights).sum().backward()
    for a, b in zip(ours, torchs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_block_and_its_gradients_equal_torch_transformer_encoder_layer():
    D = SMALL.hidden_size
    block = Block(SMALL)
    gelu = nn.GELU(approximate="tanh")
    theirs = nn.TransformerEncoderLayer(D, 3, 4 * D, 0.0, gelu, batch_first=True, norm_first=True)
    names = {
        "norm1.": "attention_norm.",
        "self_attn.in_proj_": "attention.qkv.",
        "self_attn.out_proj.": "attention.output.",
        "norm2.": "mlp_norm.",
        "linear1.": "mlp.input.",
        "linear2.": "mlp.output.",
    }
    pairs = [(f"{a}{kind}", f"{b}{kind}") for a, b in names.items() for kind in ("weight", "bias")]
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.3)
    theirs.load_state_dict({a: block.state_dict()[b] for a, b in pairs})

    x = torch.randn(2, 10, D)
    mask = nn.Transformer.generate_square_subsequent_mask(10)
    mine, reference = block(x), theirs(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    reference.square().mean().backward()
    for a, b in pairs:
        expected = theirs.get_parameter(a).grad
        torch.testing.assert_close(block.get_parameter(b).grad, expected, rtol=1e-4, atol=1e-5)


def test_a_head_is_a_slice_of_each_third_of_qkv():
    whole = CausalSelfAttention(SMALL).eval()
    x = torch.randn(2, 10, SMALL.hidden_size)
    total = torch.zeros_like(x)
    for head in range(SMALL.num_heads):
        rows = torch.arange(SMALL.head_dim) + head * SMALL.head_dim
        in_thirds = torch.cat([rows + third * SMALL.hidden_size for third in range(3)])
        part = CausalSelfAttention(SMALL)
        part.qkv.weight, part.qkv.bias = (nn.Parameter(p[in_thirds]) for p in (whole.qkv.weight, whole.qkv.bias))
        part.output.weight = nn.Parameter(whole.output.weight[:, rows])
        part.output.bias = nn.Parameter(torch.zeros(SMALL.hidden_size))
        total += part(x)
    torch.testing.assert_close(total + whole.output.bias, whole(x))


def test_another_attention_can_be_put_in_its_place():
    model, tokens = GPT(SMALL), random_tokens(SMALL)
    expected, _ = model(tokens)
    for block in model.blocks:
        block.attention.attend = lambda q, k, v, dropout_p: F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout_p, is_causal=True
        )
    torch.testing.assert_close(model(tokens)[0], expected)


@pytest.mark.parametrize("dropout, per_token, per_score", [(0.0, 16, 1), (0.1, 18, 3)])
def test_a_block_keeps_the_numbers_that_the_activation_formula_counts(dropout, per_token, per_score):
    """16 sbh + as^2 b numbers; with dropout 2 sbh + as^2 b more in masks, and as^2 b of weights left over.

    At 2 bytes a number and 1 byte a mask entry this is the sbh(34 + 5as/h) of Korthikanti et al. 2022. Torch
    on CPU keeps masks as full numbers, hence the count. The 4 sb are the two norms' mean and spread.
    """
    s, b, h, a = 32, 3, 24, 3
    block = Block(GPTConfig(1, h, a, 50, s, dropout=dropout))
    parameters = {p.untyped_storage().data_ptr() for p in block.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    x = torch.randn(b, s, h, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = block(x)
    assert y.requires_grad
    assert sum(kept.values()) == per_token * s * b * h + per_score * a * s**2 * b + 4 * s * b


def test_dropout_acts_in_training_and_not_in_evaluation():
    config = GPTConfig(2, 24, 3, 50, 10, dropout=0.5)
    model, tokens = GPT(config), random_tokens(config)
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, got 0"),
        ({"vocab_size": 256.0}, "vocab_size must be an integer of at least 1, got 256.0"),
        ({"hidden_size": 64, "num_heads": 5}, "hidden_size=64, num_heads=5"),
        ({"dropout": 1.0}, r"dropout must be a probability in \[0, 1\), got 1.0"),
    ],
)
def test_a_config_no_model_can_have_is_refused_with_what_was_given(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**changes)


@pytest.mark.parametrize("shape", [(10,), (2, 11)])
def test_tokens_of_the_wrong_shape_are_refused_with_what_was_given(shape):
    with pytest.raises(ValueError, match=r"at most sequence_length=10, got shape \(" + str(shape[0])):
        GPT(SMALL)(torch.zeros(shape, dtype=torch.long))
