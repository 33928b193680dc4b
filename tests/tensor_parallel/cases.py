"""Models that are cut, and what one process computes with them whole.

Apart from the tests, since ranks import it in every launch: pytest would cost them a second.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.collectives import all_gather_along
from course_lib.reference import GPT, GPTConfig
from course_lib.tensor_parallel import clip_grad_norm_, full_state_dict
from course_lib.tensor_parallel.full_state import cuts_by_name

B, T, D, V, HEADS = 2, 12, 24, 48, 12  # 1, 2, 3 and 4 divide all but B
CONFIG = GPTConfig(num_layers=2, hidden_size=D, num_heads=HEADS, vocab_size=V, sequence_length=T)
WAYS = {"TP": {}, "TP+SP": {"sequence_parallel": True},
        "TP+SP again": {"sequence_parallel": True, "gather_again": True}}


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
        self.q_norm = nn.RMSNorm(self.head_dim)

    def forward(self, hidden_states, position_embeddings):
        rows, tokens, _ = hidden_states.shape
        q = self.q_norm(self.q_proj(hidden_states).view(rows, tokens, self.num_heads, self.head_dim)).transpose(1, 2)
        k, v = (proj(hidden_states).view(rows, tokens, self.num_key_value_heads, self.head_dim).transpose(1, 2)
                for proj in (self.k_proj, self.v_proj))
        q, k = (rotated(x, *position_embeddings) for x in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1)), None


class LlamaMLP(nn.Module):
    """Gate and up in one matrix, with biases, or in two without."""

    def __init__(self, hidden_size, intermediate_size, fused):
        super().__init__()
        if fused:
            self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size)
        else:
            self.gate_proj, self.up_proj = (nn.Linear(hidden_size, intermediate_size, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=fused)

    def forward(self, x):
        fused = getattr(self, "gate_up_proj", None)
        gate, up = fused(x).chunk(2, -1) if fused else (self.gate_proj(x), self.up_proj(x))
        return self.down_proj(F.silu(gate) * up)


class LlamaLayer(nn.Module):
    """As Hugging Face writes it: called with names, a tuple from its attention."""

    def __init__(self, fused=False, num_key_value_heads=HEADS):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(D), nn.RMSNorm(D)
        self.self_attn = LlamaAttention(D, HEADS, num_key_value_heads)
        self.mlp = LlamaMLP(D, 2 * D, fused)

    def forward(self, hidden_states, position_embeddings=None):
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states),
                                     position_embeddings=position_embeddings)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Llama(nn.Module):
    """Embedding, layers, norm and read-out; a second layer with fused gate and up.

    Where twelve heads share four of k and v, three ranks cannot have them.
    """

    def __init__(self, num_key_value_heads=HEADS):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, D)
        self.layers = nn.ModuleList(LlamaLayer(fused, num_key_value_heads) for fused in (False, True))
        self.norm = nn.RMSNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, tokens, targets=None):
        x = self.embed_tokens(tokens)
        positions = rotary(x.shape[1], D // HEADS, x)
        for layer in self.layers:
            x = layer(x, position_embeddings=positions)
        logits = self.lm_head(self.norm(x))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())


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


MODELS = {"GPT": lambda: GPT(CONFIG), "Llama": Llama, "GroupedLlama": partial(Llama, 4), "Difficult": Difficult}


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


def off(given, expected):
    """The largest difference, relative to the largest number there is, or infinite where one of the two is not there.
    """
    if given is None or expected is None:
        return 0.0 if given is expected else float("inf")
    return ((given - expected).abs().max() / expected.abs().max().clamp(min=1e-2)).item()


def far(found, expected, limit=1e-10):
    """{name: difference} of the tensors that are not as expected."""
    differences = {name: off(found.get(name), expected.get(name)) for name in {**expected, **found}}
    return {name: difference for name, difference in differences.items() if not difference < limit}


def wrong(alone, cut, run, limit=1e-10):
    """{name: difference} of what `run(model)` gives, which goes backward too, and of gradients, to one process."""
    expected, found = run(alone), run(cut)
    gradients = {name: p.grad for name, p in alone.named_parameters()}
    return far(found | whole_gradients(cut), expected | gradients, limit)


def one_pass(model, group=None):
    tokens, targets = batch()
    logits, loss = model(tokens, targets)
    loss.backward()
    found = {"logits": logits, "logits alone": model(tokens)[0]}
    return {"loss": loss, **{name: value if value.shape[-1] == V else all_gather_along(value, -1, group)
                             for name, value in found.items()}}


def five_steps(alone, cut):
    """Five AdamW steps of two backward passes with clipping: {name: (ours, theirs)} of parameters and norms."""
    # eps is above the rounding errors, of which AdamW makes whole steps where the gradient is zero: a key's bias
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5) for model in (alone, cut)]
    ours, theirs = {}, {}
    for step in range(5):
        for model, optimizer in zip((alone, cut), optimizers):
            optimizer.zero_grad()
            for micro in range(2):
                (model(*batch(2 * step + micro))[1] / 2).backward()
        theirs[f"norm {step}"] = nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        ours[f"norm {step}"] = clip_grad_norm_(cut, 0.5)
        for optimizer in optimizers:
            optimizer.step()
    return ours | full_state_dict(cut), theirs | alone.state_dict()
