"""The sizes of a transformer, as a paper's table of architectures gives them: parameters, FLOPs and activations can be
counted from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): q, and k and v together, pass through narrow vectors of `q_rank` and
    `kv_rank` numbers. A head compares `nope` + `rope` numbers, of which all heads share the `rope` of k, and mixes
    `value`. q_rank 0: q has one matrix, as usual.
    """

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer. `ffn_size` is the width inside the MLP; `gated` MLPs (SwiGLU) have three matrices.

    `tied`: the matrix that embeds also reads out. `learned_positions`: positions have an embedding of their own.
    `biases`: Linear and normalisation layers have them (normalisation then has two vectors, not one). `num_experts`
    copies of the MLP stand in each layer, and a token uses `active_experts` of them, and `shared_experts` of width
    `shared_ffn` besides, which every token uses. `dense_layers` of the layers have one MLP of width `dense_ffn` in the
    place of experts. `latent` in the place of ordinary attention. Every `window_every`-th layer looks back at `window`
    tokens only (0: all look at all). `mtp_layers`: behind the last one, each predicts one token more (multi-token
    prediction), with a pass of the read-out; they are not among num_layers and not among the parameters.
    ValueError for sizes below one, or heads that cannot share their keys.

    >>> shape = Shape(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_size=14_336,
    ...               vocab_size=128_256, sequence_length=8192, gated=True)
    >>> shape.d
    128
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    vocab_size: int
    sequence_length: int
    head_dim: int = 0  # 0: hidden_size / num_heads
    gated: bool = False
    tied: bool = False
    learned_positions: bool = False
    biases: bool = False
    num_experts: int = 1
    active_experts: int = 1
    shared_experts: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    mtp_layers: int = 0
    window: int = 0
    window_every: int = 1
    latent: LatentAttention | None = None
    source: str = "the caller"
    date: str = "2026"

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "vocab_size",
                     "sequence_length", "num_experts", "active_experts"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number of 1 or more")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: expected a multiple")
        if not self.head_dim and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size}, num_heads={self.num_heads}: expected a multiple, or "
                             f"head_dim")
        if self.active_experts > self.num_experts:
            raise ValueError(f"active_experts={self.active_experts}: expected at most num_experts={self.num_experts}")
        for name in ("shared_experts", "shared_ffn", "dense_layers", "dense_ffn", "mtp_layers", "window"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name}={value!r}: expected a whole number of 0 or more")
        for count, width in (("shared_experts", "shared_ffn"), ("dense_layers", "dense_ffn")):
            if (getattr(self, count) > 0) != (getattr(self, width) > 0):
                raise ValueError(f"{count}={getattr(self, count)}, {width}={getattr(self, width)}: expected both or "
                                 "neither")
        if self.dense_layers > self.num_layers or self.dense_layers and self.num_experts == 1:
            raise ValueError(f"dense_layers={self.dense_layers}: expected at most num_layers={self.num_layers}, in a "
                             "model whose other layers have experts")
        if type(self.window_every) is not int or self.window_every < 1:
            raise ValueError(f"window_every={self.window_every!r}: expected a whole number of 1 or more")

    @property
    def d(self) -> int:
        """The width of one head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def qk_width(self) -> int:
        """Numbers that a head compares of a query and a key: their product is a score."""
        return self.latent.nope + self.latent.rope if self.latent else self.d

    @property
    def v_width(self) -> int:
        """Numbers of a value, which a head mixes by the scores."""
        return self.latent.value if self.latent else self.d

    def kinds(self) -> tuple[tuple[int, Shape], ...]:
        """(how many layers, a Shape in which all layers are of that kind): one kind, or dense ones and the others."""
        if not self.dense_layers:
            return ((self.num_layers, self),)
        plain = replace(self, num_layers=self.dense_layers, ffn_size=self.dense_ffn, num_experts=1, active_experts=1,
                        shared_experts=0, shared_ffn=0, dense_layers=0, dense_ffn=0)
        others = self.num_layers - self.dense_layers
        with_experts = replace(self, num_layers=max(1, others), dense_layers=0, dense_ffn=0)
        return ((self.dense_layers, plain), (others, with_experts))

    def attended_tokens(self, sequence_length: int) -> float:
        """Tokens that a token is compared with, on average over the layers, where full attention is counted s x s and
        a window therefore twice as wide as it is.
        """
        s = sequence_length
        if not self.window:
            return s
        return s + (min(s, 2 * self.window) - s) / self.window_every
