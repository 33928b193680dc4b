"""How fast published runs were that cut every layer over t devices, and by how much they did so. Megatron's layouts.

The runs of SPLIT_RUNS are of one model of 3 billion parameters, whose shape the source does not give. It gives rates
and batches side by side, and does not say at which batch a rate was measured.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact
from course_lib.facts.models import LLAMA3, SC21, SMITH

ULTRA = "Hugging Face, The Ultra-Scale Playbook, assets/data/benchmarks"


@dataclass(frozen=True)
class SplitRun:
    """`per_device`: tokens/s of each of t H100s, eight to a node, which work on the same layers.

    max_batch: sequences of 4,096 tokens, the most that fit.
    """

    t: int
    max_batch: int
    per_device: Fact


def runs(name: str, *rows: tuple[int, int, float]) -> tuple[SplitRun, ...]:
    """From rows (t, sequences, tokens a second), as the file `name` of the Ultra-Scale Playbook has them."""
    return tuple(SplitRun(t, batch, Fact(rate, "tokens/s", f"{ULTRA}/{name}", "2025")) for t, batch, rate in rows)


# By what was cut.
SPLIT_RUNS: dict[str, tuple[SplitRun, ...]] = {
    "tensor parallel": runs("tp_scaling.html", (2, 3, 13_923.18), (4, 8, 12_420.76), (8, 12, 10_903.32),
                            (16, 16, 6_245.6), (32, 20, 2_146.44)),
    "and sequence parallel": runs("tp_sp_scaling.html", (2, 4, 14_167.25), (4, 10, 13_460.16), (8, 20, 10_888.53),
                                  (16, 40, 6_159.3), (32, 100, 3_609.73)),
}

# By how much well-known runs cut their layers. What more devices there were worked on other layers, or other rows.
PUBLISHED_T: dict[str, Fact] = {
    "GPT-3": Fact(8, "ranks", SC21[0].replace("section 5.1", "table 2"), SC21[1]),
    "Megatron-Turing NLG": Fact(8, "ranks", f"{SMITH[0]}, section 2.2", SMITH[1]),
    "Llama 3 405B": Fact(8, "ranks", LLAMA3[0].replace("table 3", "table 4"), LLAMA3[1]),
}


@dataclass(frozen=True)
class PublishedLayout:
    """A model of `layers` layers, trained on `num_devices`, of which tp x pp hold one copy: `micro_batch` rows at a
    time, `global_batch` rows a step, v chunks of layers on each stage.
    """

    name: str
    layers: int
    hidden_size: int
    num_devices: int
    tp: int
    pp: int
    num_heads: int
    micro_batch: int
    global_batch: int
    v: int
    source: str
    date: str


# All ten rows of table 1; the script has heads, batches and chunks. published.json has the step's time of seven.
SC21_LAYOUTS: tuple[PublishedLayout, ...] = tuple(
    PublishedLayout(*row, "Narayanan et al. (SC'21), table 1; NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh", "2021")
    for row in (
        ("1.7B", 24, 2304, 32, 1, 1, 24, 16, 512, 1), ("3.6B", 30, 3072, 64, 2, 1, 32, 16, 512, 1),
        ("7.5B", 36, 4096, 128, 4, 1, 32, 16, 512, 1), ("18.4B", 40, 6144, 256, 8, 1, 48, 8, 1024, 1),
        ("39.1B", 48, 8192, 512, 8, 2, 64, 4, 1536, 1), ("76.1B", 60, 10_240, 1024, 8, 4, 80, 2, 1792, 3),
        ("145.6B", 80, 12_288, 1536, 8, 8, 96, 2, 2304, 2), ("310.1B", 96, 16_384, 1920, 8, 16, 128, 1, 2160, 2),
        ("529.6B", 105, 20_480, 2520, 8, 35, 128, 1, 2520, 3), ("1008B", 128, 25_600, 3072, 8, 64, 160, 1, 3072, 1),
    )
)
