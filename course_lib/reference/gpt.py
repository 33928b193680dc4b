"""The one small GPT of the course, in plain single-process PyTorch.

Every chapter splits this model over devices in its own way and must get the same numbers back. It is a GPT-2:
pre-norm blocks, learned positions, a GELU MLP four times as wide as the model, and one matrix that both
embeds the tokens and reads out the prediction.

Sources: Radford et al. 2019 (GPT-2: pre-norm, initialisation); Press and Wolf 2017 (tied embeddings);
karpathy/nanoGPT `model.py` for the size and manner of the code.

Shapes: B batch, T tokens, D hidden size, H heads, d = D/H head size, V vocabulary.
"""

import math
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT. The default reads bytes, learns on a laptop in seconds, and divides by 2 and by 4
    wherever a chapter cuts it: layers into stages, heads and hidden size into shards, tokens into chunks.

    `sequence_length` is the longest input in tokens. `dropout` is a probability in [0, 1).
    """

    num_layers: int = 4
    hidden_size: int = 64
    num_heads: int = 4
    vocab_size: int = 256
    sequence_length: int = 64
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} must be an integer of at least 1, got {value!r}")
        if self.hidden_size % self.num_heads:
            raise ValueError("hidden_size must be a multiple of num_heads, so that all heads have the same size: "
                             f"got hidden_size={self.hidden_size}, num_heads={self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a probability in [0, 1), got {self.dropout!r}")

    @property
    def head_dim(self) -> int:
        """d, the width of one attention head."""
        return self.hidden_size // self.num_heads


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, where a token sees itself and what came before it.

    q, k, v and the result are (B, H, T, d). Written out rather than calling F.scaled_dot_product_attention
    because the fused kernel never stores the T x T matrices: here they exist, so the chapters on memory can
    measure the 5as/h of the activation formula sbh(34 + 5as/h) (Korthikanti et al. 2022) and then show what
    removing them saves.
    """
    T, d = q.shape[-2:]
    # Added, not filled in with masked_fill: an addition keeps nothing for the backward pass.
    mask = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(d) + mask  # (B, H, T, T)
    weights = F.dropout(scores.softmax(dim=-1), dropout_p)  # (B, H, T, T)
    return weights @ v  # (B, H, T, d)


class CausalSelfAttention(nn.Module):
    """Multi-head attention, with the three things a chapter may replace kept apart.

    `qkv` is one Linear whose 3D output rows are laid out q | k | v, each of them head after head. One matrix,
    so that tensor parallelism sums the gradient of its input once and not three times. A rank with heads i to
    j-1 takes rows i*d to j*d-1 of each third; the number of heads is read off the width of what comes out.
    `attend(q, k, v, dropout_p)` on (B, H, T, d) is a plain attribute: assign any function of that form.
    `output` is the projection back into the residual stream.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.attend = causal_attention
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = (self._split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))  # (B, H, T, d) each
        context = self.attend(q, k, v, self.dropout.p if self.training else 0.0)  # (B, H, T, d)
        return self.dropout(self.output(context.transpose(1, 2).flatten(2)))

    def _split_heads(self, part: Tensor) -> Tensor:
        return part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, T, D) -> (B, H, T, d)


class MLP(nn.Module):
    """D -> 4D -> GELU -> D, applied to each token by itself."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.input = nn.Linear(config.hidden_size, 4 * config.hidden_size)
        self.activation = nn.GELU(approximate="tanh")  # the form GPT-2 was trained with
        self.output = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.dropout(self.output(self.activation(self.input(x))))


class Block(nn.Module):
    """Attention, then MLP, each normalised on the way in and added back on the way out."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden_size)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """What each token is plus where it stands."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.sequence_length, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, D)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token(tokens) + self.position(positions))


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats a token. logits (B, T, V), targets (B, T) int64 -> scalar."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GPT(nn.Module):
    """A GPT-2: `embedding`, then every module of `blocks`, then `norm`, then `head`.

    Each of these maps one tensor to one tensor, so a pipeline can cut the chain anywhere. `head.weight` *is*
    `embedding.token.weight`: one parameter, one gradient, counted once.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Before initialising: named_parameters then has the tied matrix once, by the name of the embedding.
        self.head.weight = self.embedding.token.weight
        self._initialise()

    def _initialise(self) -> None:
        # 2 num_layers branches are added into the residual stream. Each starts smaller by the root of that,
        # so that their sum starts equally large in a deep model and in a shallow one (GPT-2, section 2.3).
        residual_std = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if name.endswith(".output.weight"):
                nn.init.normal_(parameter, std=residual_std)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """tokens, targets (B, T) int64 -> logits (B, T, V), and the mean loss in nats if targets."""
        if tokens.dim() != 2 or tokens.shape[1] > self.config.sequence_length:
            raise ValueError(f"tokens must be (B, T) with T at most sequence_length={self.config.sequence_length}, "
                             f"got shape {tuple(tokens.shape)}")
        x = self.embedding(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        logits = self.head(self.norm(x))  # (B, T, V)
        return logits, None if targets is None else next_token_loss(logits, targets)

    def num_parameters(self, include_embeddings: bool = True) -> int:
        """How many numbers are trained; the tied matrix counts once.

        With L layers: L (12 D^2 + 13 D) + 2 D without the embeddings, which is the N of 6ND (Kaplan et al.
        2020), and (V + T) D more with them.
        """
        embeddings = 0 if include_embeddings else sum(p.numel() for p in self.embedding.parameters())
        return sum(p.numel() for p in self.parameters()) - embeddings
