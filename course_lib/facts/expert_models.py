"""Models whose layers have experts: the sizes of such a layer, and what is reported of routing and placement."""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

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
