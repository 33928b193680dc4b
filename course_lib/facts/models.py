"""Models that were trained and reported on: how many parameters, on how many tokens, and of what shape.

A shape carries its own source, and a test compares the parameters counted from it with the published number. Models
that mix attention with state-space layers (Nemotron-H, Qwen3-Next) are not here: Shape cannot hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.facts.fact import Fact, find
from course_lib.facts.shape import LatentAttention, Shape


@dataclass(frozen=True)
class Model:
    """`active`: the parameters that one token passes through, where experts make that fewer. `estimate`: not from the
    makers. `shape` is None where it was not published or is of a kind that Shape cannot hold. `text`: how much it read,
    where its makers did not count tokens."""

    name: str
    year: int
    parameters: Fact
    tokens: Fact | None = None
    active: Fact | None = None
    shape: Shape | None = None
    estimate: bool = False
    text: Fact | None = None

    @property
    def training_text(self) -> Fact | None:
        """How much it was trained on: tokens, or words or bytes where tokens were not counted; None if unpublished."""
        return self.tokens or self.text

    @property
    def active_parameters(self) -> float:
        """Parameters that one token passes through: all of them where there are no experts."""
        return (self.active or self.parameters).value


def billions(value: float, source: str, date: str, unit: str = "parameters") -> Fact:
    """`value` billion as a Fact."""
    return Fact(float(round(value * 1e9)), unit, source, date)


def gpt_shape(layers: int, hidden: int, heads: int, vocab: int, sequence: int, source: str, date: str,
              learned_positions: bool = True) -> Shape:
    """As GPT-2: full attention, an MLP four times as wide, biases, tied embeddings, learned positions."""
    return Shape(layers, hidden, heads, heads, 4 * hidden, vocab, sequence, tied=True, biases=True,
                 learned_positions=learned_positions, source=source, date=date)


def llama_shape(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int, source: str,
                date: str, **more: Any) -> Shape:
    """As Llama: a gated MLP, no biases, embeddings that are not tied; `more` are fields of Shape."""
    return Shape(layers, hidden, heads, kv_heads, ffn, vocab, sequence, gated=True, source=source, date=date, **more)


def experts(name: str, parameters: float, active: float, tokens: float | None, source: str, date: str,
            shape: Shape) -> Model:
    """A model with experts; parameters, active ones and tokens in billions."""
    return Model(name, int(date[:4]), billions(parameters, source, date),
                 None if tokens is None else billions(tokens, source, date, "tokens"), billions(active, source, date),
                 shape)


def dense(name: str, parameters: float, tokens: float | None, source: str, date: str,
          shape: Shape | None = None, text: Fact | None = None) -> Model:
    """A model without experts; parameters and tokens in billions."""
    return Model(name, int(date[:4]), billions(parameters, source, date),
                 None if tokens is None else billions(tokens, source, date, "tokens"), shape=shape, text=text)


DEVLIN = ("Devlin et al., BERT", "2018")
RADFORD = ("Radford et al., Language Models are Unsupervised Multitask Learners", "2019")
BROWN = ("Brown et al., Language Models are Few-Shot Learners, tables 2.1 and D.1", "2020")
SMITH = ("Smith et al., Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B", "2022-01")
CHOWDHERY = ("Chowdhery et al., PaLM", "2022")
HOFFMANN = ("Hoffmann et al., Training Compute-Optimal Large Language Models", "2022")
BLOOM = ("BigScience, BLOOM", "2022")
TOUVRON = ("Touvron et al., Llama 2", "2023")
JIANG = ("Jiang et al., Mixtral of Experts", "2024")
LLAMA3 = ("Llama team, The Llama 3 Herd of Models, table 3", "2024")
NEMOTRON = ("NVIDIA, Nemotron-4 340B technical report, table 1, and its card", "2024")
MIXTRAL_8X22B = ("Mistral AI, Mixtral 8x22B: announcement and config.json", "2024")
DEEPSEEK_V2 = ("DeepSeek-AI, DeepSeek-V2 technical report, and config_236B.json", "2024")
DEEPSEEK = ("DeepSeek-AI, DeepSeek-V3 technical report", "2024")
DEEPSEEK_LATENT = LatentAttention(q_rank=1536, kv_rank=512, nope=128, rope=64, value=128)
LLAMA4 = ("Meta, Llama 4 model card, and the metadata of its weights", "2025")
QWEN3 = ("Qwen team, Qwen3 model cards; shapes as in pytorch/torchtitan, models/qwen3", "2025")
KIMI_K2 = ("Moonshot AI, MoonshotAI/Kimi-K2, README, Model Summary", "2025")
GPT_OSS = ("OpenAI, gpt-oss model card, and config.json", "2025")
GPT4_RUMOUR = ("Patel and Wong, SemiAnalysis: GPT-4 Architecture; OpenAI has published nothing", "2023")

MODELS: tuple[Model, ...] = (
    dense("BERT-Large", 0.340, None, *DEVLIN,
          gpt_shape(24, 1024, 16, 30_522, 512, *DEVLIN),
          text=billions(3.3, "Devlin et al., BERT, section 3.1, as quoted in codertimo/bert-pytorch, issue 43", "2018",
                        unit="words")),
    dense("GPT-2", 1.558, None, *RADFORD, gpt_shape(48, 1600, 25, 50_257, 1024, *RADFORD),
          text=billions(40, *RADFORD, unit="bytes")),
    dense("GPT-3", 174.6, 300, *BROWN, gpt_shape(96, 12_288, 96, 50_257, 2048, *BROWN)),
    Model("Megatron-Turing NLG", 2021, billions(530, *SMITH), billions(270, *SMITH, unit="tokens"),
          shape=gpt_shape(105, 20_480, 128, 50_257, 2048, *SMITH)),
    dense("PaLM", 540.35, 780, *CHOWDHERY,
          Shape(118, 18_432, 48, 1, 4 * 18_432, 256_000, 2048, head_dim=256, gated=True, tied=True,
                source=CHOWDHERY[0], date=CHOWDHERY[1])),
    dense("Chinchilla", 70, 1_400, *HOFFMANN),
    dense("BLOOM", 176.25, 366, *BLOOM, gpt_shape(70, 14_336, 112, 250_880, 2048, *BLOOM, learned_positions=False)),
    Model("GPT-4 (estimate)", 2023, billions(1_800, *GPT4_RUMOUR), billions(13_000, *GPT4_RUMOUR, unit="tokens"),
          billions(280, *GPT4_RUMOUR), estimate=True),
    dense("Llama 2 7B", 6.738, 2_000, *TOUVRON, llama_shape(32, 4096, 32, 32, 11_008, 32_000, 4096, *TOUVRON)),
    dense("Llama 2 13B", 13.016, 2_000, *TOUVRON, llama_shape(40, 5120, 40, 40, 13_824, 32_000, 4096, *TOUVRON)),
    dense("Llama 2 70B", 68.977, 2_000, *TOUVRON, llama_shape(80, 8192, 64, 8, 28_672, 32_000, 4096, *TOUVRON)),
    Model("Mixtral 8x7B", 2023, billions(46.7, *JIANG), None, billions(12.9, *JIANG),
          llama_shape(32, 4096, 32, 8, 14_336, 32_000, 32_768, *JIANG, num_experts=8, active_experts=2)),
    dense("Llama 3 8B", 8.03, 15_000, *LLAMA3, llama_shape(32, 4096, 32, 8, 14_336, 128_256, 8192, *LLAMA3)),
    dense("Llama 3 70B", 70.6, 15_000, *LLAMA3, llama_shape(80, 8192, 64, 8, 28_672, 128_256, 8192, *LLAMA3)),
    dense("Llama 3 405B", 405.85, 15_600, *LLAMA3, llama_shape(126, 16_384, 128, 8, 53_248, 128_256, 8192, *LLAMA3)),
    dense("Nemotron-4 340B", 340, 9_000, *NEMOTRON,
          Shape(96, 18_432, 96, 8, 4 * 18_432, 256_000, 4096, source=NEMOTRON[0], date=NEMOTRON[1])),
    experts("Mixtral 8x22B", 141, 39, None, *MIXTRAL_8X22B,
            llama_shape(56, 6144, 48, 8, 16_384, 32_000, 65_536, *MIXTRAL_8X22B, num_experts=8, active_experts=2)),
    experts("DeepSeek-V2", 236, 21, 8_100, *DEEPSEEK_V2,
            llama_shape(60, 5120, 128, 128, 1536, 102_400, 4096, *DEEPSEEK_V2, num_experts=160, active_experts=6,
                        shared_experts=2, shared_ffn=1536, dense_layers=1, dense_ffn=12_288, latent=DEEPSEEK_LATENT)),
    experts("DeepSeek-V3", 671, 37, 14_800, *DEEPSEEK,
            llama_shape(61, 7168, 128, 128, 2048, 129_280, 4096, *DEEPSEEK, num_experts=256, active_experts=8,
                        shared_experts=1, shared_ffn=2048, dense_layers=3, dense_ffn=18_432, mtp_layers=1,
                        latent=DEEPSEEK_LATENT)),
    # without the part that reads images; every second layer of Maverick is dense, here the first 24 are
    experts("Llama 4 Scout", 109, 17, 40_000, *LLAMA4,
            llama_shape(48, 5120, 40, 8, 8192, 202_048, 8192, *LLAMA4, num_experts=16, shared_experts=1,
                        shared_ffn=8192)),
    experts("Llama 4 Maverick", 400, 17, 22_000, *LLAMA4,
            llama_shape(48, 5120, 40, 8, 8192, 202_048, 8192, *LLAMA4, num_experts=128, shared_experts=1,
                        shared_ffn=8192, dense_layers=24, dense_ffn=16_384)),
    *(dense(f"Qwen3-{size}", parameters, 36_000, *QWEN3,
            llama_shape(*sizes, 151_936, 4096, *QWEN3, head_dim=128, tied=tied))
      for size, parameters, tied, sizes in (
          ("0.6B", 0.6, True, (28, 1024, 16, 8, 3072)), ("1.7B", 1.7, True, (28, 2048, 16, 8, 6144)),
          ("4B", 4.0, True, (36, 2560, 32, 8, 9728)), ("8B", 8.2, False, (36, 4096, 32, 8, 12_288)),
          ("14B", 14.8, False, (40, 5120, 40, 8, 17_408)), ("32B", 32.8, False, (64, 5120, 64, 8, 25_600)))),
    experts("Qwen3-30B-A3B", 30.5, 3.3, 36_000, *QWEN3,
            llama_shape(48, 2048, 32, 4, 768, 151_936, 4096, *QWEN3, head_dim=128, num_experts=128, active_experts=8)),
    experts("Qwen3-235B-A22B", 235, 22, 36_000, *QWEN3,
            llama_shape(94, 4096, 64, 4, 1536, 151_936, 4096, *QWEN3, head_dim=128, num_experts=128,
                        active_experts=8)),
    experts("Kimi K2", 1_000, 32, 15_500, *KIMI_K2,
            llama_shape(61, 7168, 64, 64, 2048, 163_840, 4096, *KIMI_K2, num_experts=384, active_experts=8,
                        shared_experts=1, shared_ffn=2048, dense_layers=1, dense_ffn=18_432, latent=DEEPSEEK_LATENT)),
    *(experts(f"gpt-oss-{size}", parameters, active, None, *GPT_OSS,
              llama_shape(layers, 2880, 64, 8, 2880, 201_088, 4096, *GPT_OSS, head_dim=64, biases=True,
                          num_experts=num_experts, active_experts=4, window=128, window_every=2))
      for size, parameters, active, layers, num_experts in (("20b", 20.9, 3.6, 24, 32), ("120b", 116.8, 5.1, 36, 128))),
)


@dataclass(frozen=True)
class ReportedRun:
    """A run as its makers, or somebody who measured, reported it. `achieved`: TFLOP/s of one device.

    `counts_recomputation`: `achieved` counts the forward passes that were done twice to save memory (HFU's FLOPs).
    """

    model: str
    device: str
    num_devices: int
    achieved: Fact
    counts_recomputation: bool
    days: Fact | None = None


PATTERSON = ("Patterson et al., Carbon Emissions and Large Neural Network Training, table 4", "2021")
SC21 = ("Narayanan et al., Efficient Large-Scale Language Model Training (SC'21), section 5.1", "2021")
TRAINING_REPORTS: tuple[ReportedRun, ...] = (
    ReportedRun("GPT-3", "A100", 1024, Fact(140, "TFLOP/s", *SC21), True, Fact(34, "days", *SC21)),
    ReportedRun("1T GPT", "A100", 3072, Fact(163, "TFLOP/s", *SC21), True, Fact(84, "days", *SC21)),
    ReportedRun("Llama 3 405B", "H100", 16_384,
                   Fact(400, "TFLOP/s", "Llama team, The Llama 3 Herd of Models, table 4", "2024"), False),
    ReportedRun("GPT-3", "V100", 10_000, Fact(24.6, "TFLOP/s", *PATTERSON, unverified=True), False,
                   Fact(14.8, "days", *PATTERSON, unverified=True)),
)
PUBLISHED_FLOPS: dict[str, Fact] = {
    "GPT-3": Fact(3.14e23, "FLOP", *BROWN),
    "Chinchilla": Fact(5.76e23, "FLOP", *HOFFMANN),
    "Llama 3 405B": Fact(3.8e25, "FLOP", "Llama team, The Llama 3 Herd of Models, section 1", "2024"),
}
DEEPSEEK_V3_GPU_HOURS = Fact(2.788e6, "H800 hours", "DeepSeek-AI, DeepSeek-V3 technical report, table 1", "2024")
GPT3_ENERGY = Fact(1_287_000, "kWh", *PATTERSON)
# What that counts: watts of one V100 with its share of the server, measured on average, and the data centre's PUE.
GPT3_POWER = Fact(330, "W", *PATTERSON, unverified=True)
GPT3_PUE = Fact(1.10, "ratio", *PATTERSON, unverified=True)
# Two estimates of the bill that are often quoted as a range.
GPT3_COSTS: tuple[Fact, ...] = (
    Fact(4.6e6, "USD", "Li, Lambda: 355 years of one V100 at the lowest price of a cloud", "2020"),
    Fact(12e6, "USD", "press estimate of 2020, quoted without its arithmetic", "2020-07"),
)
GPT3_ON_ONE_V100 = Fact(355, "years", "Li, OpenAI's GPT-3 Language Model: A Technical Overview, Lambda, at 28 TFLOP/s",
                        "2020")


def model(name: str) -> Model:
    """The one of this name. ValueError, with all names, where there is none."""
    return find("model", name, MODELS)
