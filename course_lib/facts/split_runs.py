"""How fast published runs were that cut every layer over t devices, and by how much they did so. Megatron's layouts.

The rows of SPLIT_RUNS are those without a pipeline. Micro-batches, ZeRO stages and numbers of devices differ between
them, so each t has the fastest row that there is; they are compared for what happens at the edge of a node.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact
from course_lib.facts.models import LLAMA3, SC21, SMITH, llama_shape
from course_lib.facts.shape import Shape

ULTRA = ("Hugging Face, The Ultra-Scale Playbook, assets/data/benchmarks/benchmarks_interactive.html", "2025")


@dataclass(frozen=True)
class SplitRun:
    """`per_device`: tokens/s of each of `num_devices`, of which every t work on one layer."""

    t: int
    num_devices: int
    per_device: Fact


@dataclass(frozen=True)
class SplitRuns:
    """Runs of one model on `device`, eight to a node. The batch is 256 sequences of 4,096 tokens."""

    model: str
    device: str
    shape: Shape
    runs: tuple[SplitRun, ...]


def runs(*rows: tuple[int, int, float]) -> tuple[SplitRun, ...]:
    """From rows (t, devices, tokens a second), as the Ultra-Scale Playbook reports them."""
    return tuple(SplitRun(t, n, Fact(rate, "tokens/s", *ULTRA)) for t, n, rate in rows)


SPLIT_RUNS: tuple[SplitRuns, ...] = (
    SplitRuns("1B", "H100", llama_shape(16, 2048, 32, 32, 8192, 131_072, 4096, *ULTRA, tied=True), runs(
        (1, 16, 37_610), (2, 16, 37_159), (4, 8, 33_597), (8, 8, 28_101), (16, 32, 9_881), (32, 32, 8_205))),
    SplitRuns("8B", "H100", llama_shape(32, 4096, 32, 32, 14_336, 131_072, 4096, *ULTRA), runs(
        (2, 64, 6_539), (4, 64, 6_008), (8, 16, 5_962), (16, 16, 4_456), (32, 512, 996))),
)

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
