"""Models that were trained and reported on: how many parameters, on how many tokens, and of what shape.

A Shape holds the sizes that a paper's table of architectures gives, so that parameters, FLOPs and activations can be
counted from it; it carries its own source, and a test compares the count with the published number.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer. `ffn_size` is the width inside the MLP; `gated` MLPs (SwiGLU) have three matrices.

    `tied`: the matrix that embeds also reads out. `learned_positions`: positions have an embedding of their own.
    `biases`: Linear and normalisation layers have them (normalisation then has two vectors, not one). `num_experts`
    copies of the MLP stand in each layer, and a token uses `active_experts` of them.
    ValueError for sizes below one, or heads that cannot share their keys.
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

    @property
    def d(self) -> int:
        """The width of one head."""
        return self.head_dim or self.hidden_size // self.num_heads


@dataclass(frozen=True)
class Model:
    """`active`: the parameters that one token passes through, where experts make that fewer. `estimate`: not from the
    makers. `shape` is None where it was not published or is of a kind that Shape cannot hold."""

    name: str
    year: int
    parameters: Fact
    tokens: Fact | None = None
    active: Fact | None = None
    shape: Shape | None = None
    estimate: bool = False

    @property
    def active_parameters(self) -> float:
        return (self.active or self.parameters).value


def billions(value: float, source: str, date: str, unit: str = "parameters") -> Fact:
    return Fact(float(round(value * 1e9)), unit, source, date)


def gpt_shape(layers: int, hidden: int, heads: int, vocab: int, sequence: int, source: str, date: str,
              learned_positions: bool = True) -> Shape:
    """As GPT-2: full attention, an MLP four times as wide, biases, tied embeddings, learned positions."""
    return Shape(layers, hidden, heads, heads, 4 * hidden, vocab, sequence, tied=True, biases=True,
                 learned_positions=learned_positions, source=source, date=date)


def llama_shape(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int, source: str,
                date: str, **experts: int) -> Shape:
    return Shape(layers, hidden, heads, kv_heads, ffn, vocab, sequence, gated=True, source=source, date=date, **experts)


def dense(name: str, parameters: float, tokens: float | None, source: str, date: str,
          shape: Shape | None = None) -> Model:
    """Parameters and tokens in billions."""
    return Model(name, int(date[:4]), billions(parameters, source, date),
                 None if tokens is None else billions(tokens, source, date, "tokens"), shape=shape)


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
DEEPSEEK = ("DeepSeek-AI, DeepSeek-V3 technical report", "2024")
GPT4_RUMOUR = ("Patel and Wong, SemiAnalysis: GPT-4 Architecture; OpenAI has published nothing", "2023")

MODELS: tuple[Model, ...] = (
    dense("BERT-Large", 0.340, None, *DEVLIN,
          gpt_shape(24, 1024, 16, 30_522, 512, *DEVLIN)),
    dense("GPT-2", 1.558, None, *RADFORD, gpt_shape(48, 1600, 25, 50_257, 1024, *RADFORD)),
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
    Model("DeepSeek-V3", 2024, billions(671, *DEEPSEEK), billions(14_800, *DEEPSEEK, unit="tokens"),
          billions(37, *DEEPSEEK)),
)


@dataclass(frozen=True)
class TrainingReport:
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
TRAINING_REPORTS: tuple[TrainingReport, ...] = (
    TrainingReport("GPT-3", "A100", 1024, Fact(140, "TFLOP/s", *SC21), True, Fact(34, "days", *SC21)),
    TrainingReport("1T GPT", "A100", 3072, Fact(163, "TFLOP/s", *SC21), True, Fact(84, "days", *SC21)),
    TrainingReport("Llama 3 405B", "H100", 16_384,
                   Fact(400, "TFLOP/s", "Llama team, The Llama 3 Herd of Models, table 4", "2024"), False),
    TrainingReport("GPT-3", "V100", 10_000, Fact(24.6, "TFLOP/s", *PATTERSON, unverified=True), False,
                   Fact(14.8, "days", *PATTERSON, unverified=True)),
)
PUBLISHED_FLOPS: dict[str, Fact] = {
    "GPT-3": Fact(3.14e23, "FLOP", *BROWN),
    "Chinchilla": Fact(5.76e23, "FLOP", *HOFFMANN),
    "Llama 3 405B": Fact(3.8e25, "FLOP", "Llama team, The Llama 3 Herd of Models, section 1", "2024"),
}
DEEPSEEK_V3_GPU_HOURS = Fact(2.788e6, "H800 hours", "DeepSeek-AI, DeepSeek-V3 technical report, table 1", "2024")
GPT3_ENERGY = Fact(1_287_000, "kWh", *PATTERSON)
GPT3_CARBON = Fact(552, "t CO2e", *PATTERSON)
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
    for known in MODELS:
        if known.name == name:
            return known
    raise ValueError(f"no model is called {name!r}: expected one of {', '.join(known.name for known in MODELS)}")
