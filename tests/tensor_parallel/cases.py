"""Models that are cut, and what one process computes with them whole.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.collectives import all_gather_along
from course_lib.groups.membership import member
from course_lib.reference import GPT, GPTConfig
from course_lib.tensor_parallel import clip_grad_norm_, full_state_dict, parallelize
from course_lib.tensor_parallel.full_state import cuts_by_name

B, T, D, V, HEADS = 2, 12, 24, 48, 12  # 1, 2, 3 and 4 divide all but B
CONFIG = GPTConfig(num_layers=2, hidden_size=D, num_heads=HEADS, vocab_size=V, sequence_length=T)
WAYS = {"TP": {}, "TP+SP": {"sequence_parallel": True},
        "TP+SP again": {"sequence_parallel": True, "gather_again": True}}


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def rotary(num_tokens, head_dim, like):
    """cos and sin (T, head_dim) by global position."""
    frequencies = 1e4 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64, device=like.device) / head_dim)
    angles = torch.arange(num_tokens, dtype=torch.float64, device=like.device).outer(frequencies).repeat(1, 2)
    return angles.cos().to(like), angles.sin().to(like)


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class LlamaAttention(nn.Module):
    """Grouped queries, with a norm of each head's q, as some have."""

    def __init__(self, hidden_size, num_heads, num_key_value_heads):
        super().__init__()
        self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim)

    def forward(self, hidden_states, position_embeddings):
        rows, tokens, _ = hidden_states.shape
        q = self.q_norm(self.q_proj(hidden_states).view(rows, tokens, self.num_heads, self.head_dim)).transpose(1, 2)
        k, v = (proj(hidden_states).view(rows, tokens, self.num_key_value_heads, self.head_dim).transpose(1, 2)
                for proj in (self.k_proj, self.v_proj))
        q, k = (rotated(x, *position_embeddings) for x in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1)), None


class LlamaMLP(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class FusedMLP(nn.Module):
    """gate | up in one matrix, with biases."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class LlamaLayer(nn.Module):
    """As Hugging Face writes it: called with names, a tuple from its attention."""

    def __init__(self, fused=False):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(D), RMSNorm(D)
        self.self_attn = LlamaAttention(D, HEADS, HEADS)
        self.mlp = (FusedMLP if fused else LlamaMLP)(D, 2 * D)

    def forward(self, hidden_states, position_embeddings=None):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states),
                                     position_embeddings=position_embeddings)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Llama(nn.Module):
    """Embedding, layers, norm and read-out; a second layer with fused gate and up and fewer heads of k and v."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList([LlamaLayer(), LlamaLayer(fused=True)])
        self.norm = RMSNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, tokens, targets=None):
        x = self.embed_tokens(tokens)
        positions = rotary(x.shape[1], D // HEADS, x)
        for layer in self.layers:
            x = layer(x, position_embeddings=positions)
        logits = self.lm_head(self.norm(x))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GroupedLlama(Llama):
    """Twelve heads share four of k and v: three ranks cannot have them."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.self_attn = LlamaAttention(D, HEADS, 4)


class Difficult(GPT):
    """Frozen matrices, biases and a norm, and a block that nobody uses."""

    def __init__(self):
        super().__init__(CONFIG)
        self.blocks[0].attention.qkv.weight.requires_grad_(False)
        self.blocks[0].attention_norm.weight.requires_grad_(False)
        self.blocks[0].mlp.output.bias.requires_grad_(False)
        self.blocks[1].attention_norm.requires_grad_(False)
        self.blocks[1].mlp.input.requires_grad_(False)
        self.unused = nn.ModuleDict({"mlp": GPT(CONFIG).blocks[0].mlp})


MODELS = {"GPT": lambda: GPT(CONFIG), "Llama": Llama, "GroupedLlama": GroupedLlama, "Difficult": Difficult}


def make(kind, dtype=torch.float64, seed=0):
    with torch.device("cpu"):
        torch.manual_seed(seed)
        model = MODELS[kind]()
        for parameter in model.parameters():  # norms and biases that matter
            nn.init.normal_(parameter.data, std=0.2)
        return model.to(dtype)


def batch(step=0):
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(V, (B, T + 1), generator=generator, device="cpu")
    return tokens[:, :-1], tokens[:, 1:]


def whole_gradients(model):
    """Every parameter's gradient, put together."""
    cuts = cuts_by_name(model)
    return {name: p.grad if p.grad is None or name not in cuts else cuts[name][0].join(p.grad, cuts[name][1])
            for name, p in model.named_parameters()}


def whole_logits(logits, me):
    return logits if logits.shape[-1] == V else all_gather_along(logits, -1, me)


def off(given, expected):
    """The largest difference, relative to the largest number there is, or infinite where one of the two is not there.
    """
    if given is None or expected is None:
        return 0.0 if given is expected else float("inf")
    return ((given - expected).abs().max() / expected.abs().max().clamp(min=1e-2)).item()


def one_pass(kind, dtype, group=None, **how):
    """The differences of logits, loss and gradients to those of one process."""
    alone, cut = make(kind, dtype), parallelize(make(kind, dtype, seed=member(group).r), group, **how)
    tokens, targets = batch()
    expected, expected_loss = alone(tokens, targets)
    logits, loss = cut(tokens, targets)
    expected_loss.backward()
    loss.backward()
    gradients = {name: p.grad for name, p in alone.named_parameters()}
    found = whole_gradients(cut)
    assert found.keys() == gradients.keys(), "the names of parameters are not what they were"
    return {"loss": off(loss, expected_loss), "logits": off(whole_logits(logits, member(group)), expected),
            "logits alone": off(whole_logits(cut(tokens)[0], member(group)), expected),
            **{name: off(found[name], gradients[name]) for name in gradients}}


def five_steps(kind, dtype, **how):
    """The differences of parameters and clipped norms to one process after five AdamW steps of two backward passes."""
    alone, cut = make(kind, dtype), parallelize(make(kind, dtype), None, **how)
    # eps is above the rounding errors, of which AdamW makes whole steps where the gradient is zero: a key's bias
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5) for model in (alone, cut)]
    norms = []
    for step in range(5):
        for model, optimizer in zip((alone, cut), optimizers):
            optimizer.zero_grad()
            for micro in range(2):
                (model(*batch(2 * step + micro))[1] / 2).backward()
        norms.append((nn.utils.clip_grad_norm_(alone.parameters(), 0.5), clip_grad_norm_(cut, 0.5)))
        for optimizer in optimizers:
            optimizer.step()
    expected, found = alone.state_dict(), full_state_dict(cut)
    return {"norm": max(off(ours, theirs) for theirs, ours in norms),
            **{name: off(found[name], value) for name, value in expected.items()}}
