"""The sizes of a transformer, as a paper's table of architectures gives them: parameters, FLOPs and activations can be
counted from them. Of models with experts also the sizes of such a layer alone, and what is reported of routing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from course_lib.facts.fact import Fact


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


GSHARD = ("Lepikhin et al., GShard", "2020-06")
SWITCH = ("Fedus et al., Switch Transformers", "2021-01")
MIXTRAL = ("Jiang et al., Mixtral of Experts", "2024-01")
DEEPSEEK_V3 = ("DeepSeek-AI, DeepSeek-V3 technical report", "2024-12")
QWEN3 = ("NVIDIA NeMo Automodel, performance summary: Qwen3-30B-A3B", "2026")


@dataclass(frozen=True)
class ExpertLayer:
    """A layer with `num_experts` experts, each two or (gated) three matrices between `hidden_size` and `ffn_size`; a
    token uses `k` of them, and `num_shared` more that everyone uses.
    """

    model: str
    hidden_size: int
    ffn_size: int
    num_experts: int
    k: int
    num_shared: int
    source: str
    date: str


EXPERT_LAYERS: tuple[ExpertLayer, ...] = (  # all of them gated
    ExpertLayer("Mixtral 8x7B", 4096, 14_336, 8, 2, 0, *MIXTRAL),
    ExpertLayer("Qwen3-30B-A3B", 2048, 768, 128, 8, 0, *QWEN3),
    ExpertLayer("DeepSeek-V3", 7168, 2048, 256, 8, 1, *DEEPSEEK_V3),
)

EXPERT_REPORTS: dict[str, Fact] = {
    "GShard, in all": Fact(600, "billion parameters", *GSHARD),
    "GShard, per layer": Fact(2048, "experts", *GSHARD),
    "GShard, per token": Fact(2, "experts", *GSHARD),
    "GShard, four days on": Fact(2048, "TPU v3 cores", *GSHARD),
    "Switch-C, in all": Fact(1571, "billion parameters", *SWITCH),
    "Switch-C, per layer": Fact(2048, "experts", *SWITCH),
    "Switch-C, per token": Fact(1, "expert", *SWITCH),
    "Switch-C, auxiliary loss": Fact(0.01, "of the loss", *SWITCH),
    "Mixtral 8x7B, in all": Fact(46.7, "billion parameters", *MIXTRAL),
    "Mixtral 8x7B, per token": Fact(12.9, "billion parameters", *MIXTRAL),
    "DeepSeek-V3, in all": Fact(671, "billion parameters", *DEEPSEEK_V3),
    "DeepSeek-V3, per token": Fact(37, "billion parameters", *DEEPSEEK_V3),
    "DeepSeek-V3, training": Fact(64, "ranks share the experts, in 8 nodes", *DEEPSEEK_V3),
    "DeepSeek-V3, a token's experts": Fact(4, "nodes at most", *DEEPSEEK_V3),
    "DeepSeek-V3, rate of the bias": Fact(0.001, "per step", *DEEPSEEK_V3),
    "DeepSeek-V3, reading prompts": Fact(32, "experts more, copies of busy ones, on 32 GPUs", *DEEPSEEK_V3),
}


def expert_layer(model: str) -> ExpertLayer:
    """The one of this model. ValueError, with all names, where there is none."""
    for layer in EXPERT_LAYERS:
        if layer.model == model:
            return layer
    raise ValueError(f"no layer of {model!r}: expected one of {', '.join(layer.model for layer in EXPERT_LAYERS)}")
