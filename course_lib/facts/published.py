"""What papers report of parallel training: runs with all that their step's time depends on, and tables of one question.

published.json holds the runs. A row is a plain dict; its `fields` say what keys mean, and which defaults they have. The
split says what a row may be used for: "calibration" to fit constants on, "visible" to look at, never to fit.

MEASURED_THROUGHPUT asks two questions of more devices. Weak scaling: each keeps its tokens, and the batch grows. Strong
scaling: the batch stays, and each has fewer tokens. Only what is compared with itself is comparable: units differ
between sources. SPLIT_RUNS are of one model of 3 billion parameters, whose shape the source does not give; it gives
rates and batches side by side, and does not say at which batch a rate was measured.

A rate of BUBBLE_RATES is (step - computing) / step, where the step of a schedule with split backward is the longest
time from a rank's own start to its own end. The authors computed the rates from times they had profiled for each model
(F, I, W and a message), so they hold no noise of a run, no optimizer and no data loading. ZB-1p and ZB-2p are what
their search found at the memory of 1F1B and at twice as much. Beside the rates: the throughput that they measured, on
A100 in nodes of 8.

PAPER_TABLE_1, of the ZeRO paper, has GB (1e9 bytes) of model states on each device, for Adam in mixed precision, by
(parameters, devices): stages 1, 2 and 3. It rounds some of its cells and cuts others off (4187.5 to 4187).
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from course_lib.facts.fact import Fact
from course_lib.facts.models import LLAMA3, SC21, SMITH


@lru_cache(maxsize=1)
def published_file() -> dict[str, Any]:
    """The content of published.json."""
    return json.loads(files("course_lib.facts").joinpath("published.json").read_text(encoding="utf-8"))


def published_rows(split: str | None = None, group: str | None = None) -> list[dict[str, Any]]:
    """All rows, or those of one split or one group. ValueError for a split or a group that there is not."""
    rows = published_file()["rows"]
    for key, value in (("split", split), ("group", group)):
        if value is not None:
            known = sorted({row[key] for row in rows})
            if value not in known:
                raise ValueError(f"{key}={value!r}: expected one of {', '.join(known)}")
            rows = [row for row in rows if row[key] == value]
    return [dict(row) for row in rows]


def published_table(name: str) -> dict[str, Any]:
    """What published.json has beside the rows: "zero_bubble_peak_memory_GB", "fields"."""
    return published_file()[name]


MOSAIC = ("Databricks, llm-foundry, scripts/train/benchmarking/README.md at c90b9b3, H100 80GB BF16", "2024-01")
NARAYANAN = ("Narayanan et al. 2021 (SC'21), table 2", "2021")


@dataclass(frozen=True)
class MeasuredThroughput:
    """`per_device[n]`: of each of n devices. `tokens[n]`: what each has in a step. `fixed`: what n does not change."""

    model: str
    device: str
    method: str
    fixed: str  # "tokens a device" or "batch"
    tokens: dict[int, int]
    per_device: dict[int, Fact]

    def relative(self) -> dict[int, float]:
        """Throughput of each device, by number of devices, over that of a device in the smallest run."""
        least = self.per_device[min(self.per_device)].value
        return {n: fact.value / least for n, fact in self.per_device.items()}


def mosaic(model: str, method: str, sequences: int, **tokens_per_s: int) -> MeasuredThroughput:
    """Weak scaling with `sequences` of 2,048 tokens on each H100; n8=10_643 is what each of 8 had."""
    rates = {int(n[1:]): Fact(rate, "tokens/s", *MOSAIC) for n, rate in tokens_per_s.items()}
    return MeasuredThroughput(model, "H100", method, "tokens a device", dict.fromkeys(rates, sequences * 2048), rates)


def gpt3(method: str, **tflops: int) -> MeasuredThroughput:
    """Strong scaling of GPT-3's size with 1,536 sequences of 2,048 tokens, in FLOPs that count recomputation."""
    rates = {int(n[1:]): Fact(rate, "TFLOP/s", *NARAYANAN) for n, rate in tflops.items()}
    return MeasuredThroughput("GPT-3 175B", "A100", method, "batch", {n: 1536 * 2048 // n for n in rates}, rates)


MEASURED_THROUGHPUT: tuple[MeasuredThroughput, ...] = (
    mosaic("MPT 1B", "ZeRO-2", 12, n128=44_123, n256=42_555, n512=39_837),
    mosaic("MPT 7B", "FSDP", 6, n8=10_643, n128=10_475, n256=10_119, n512=9_670),
    gpt3("ZeRO-3", n384=144, n1536=44),
    gpt3("tensor, pipeline, data", n384=153, n768=149, n1536=141),
)

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

KORTHIKANTI = ("Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, abstract", "2022-05")
BRANDON = ("Brandon et al., Striped Attention, abstract", "2023-11")
JACOBS = ("Jacobs et al., DeepSpeed Ulysses, abstract", "2023-09")
# The table itself was not at hand. Its three rows, 430, 400 and 380, were read in November 2026 as G. Lockwood copied
# them from a talk of P. Balaji (Meta) at SC'24: https://glennklockwood.com/garden/llama-3.1
LLAMA_SHORT = ("Llama team, The Llama 3 Herd of Models, table 4, second row", "2024")
LLAMA_LONG = ("Llama team, The Llama 3 Herd of Models, table 4, third row", "2024")

LONG_ROWS: dict[str, Fact] = {
    "530B on 2240 A100, full recomputation": Fact(42.1, "% MFU", *KORTHIKANTI),
    "... sequence parallel and selective": Fact(54.2, "% MFU", *KORTHIKANTI),
    "... activation memory, before over after": Fact(5, "times", *KORTHIKANTI),
    "striped over contiguous ring, 256k tokens": Fact(1.45, "times the speed, at best", *BRANDON),
    "... 786k tokens on 16 TPU v4": Fact(1.65, "times the speed", *BRANDON),
    "Ulysses over what there was, rows 4 times longer": Fact(2.5, "times the speed", *JACOBS),
    "Llama 3 405B, 8,192 tokens on 16,384 H100": Fact(400, "TFLOP/s each", *LLAMA_SHORT),
    "Llama 3 405B, 131,072 tokens on 16,384 H100": Fact(380, "TFLOP/s each", *LLAMA_LONG),
}

SECTION = ("Llama team, The Llama 3 Herd of Models, section 3.3.4", "2024")
TABLE = ("Llama team, The Llama 3 Herd of Models, table 5", "2024")

LLAMA_3_GPUS = Fact(16384, "H100", *SECTION)
LLAMA_3_SNAPSHOT = Fact(54, "days", *SECTION)
LLAMA_3_UNEXPECTED = Fact(419, "interruptions", *SECTION)
LLAMA_3_EFFECTIVE = Fact(90, "% of the time, more than", *SECTION)

LLAMA_3_GPU_HOURS = Fact(30.84e6, "H100 hours", "Meta, Llama 3.1 model card, Training Energy Use", "2024-07")

# Table 5, all 18 rows: their counts add up to the 419.
LLAMA_3_CAUSES: dict[str, Fact] = {cause: Fact(count, "interruptions", *TABLE) for cause, count in {
    "GPU: faulty, NVLink too": 148, "GPU: HBM3 memory": 72, "software": 54, "network: switch or cable": 35,
    "maintenance of a host, unplanned": 32, "GPU: SRAM": 19, "GPU: system processor": 17, "host: network interface": 7,
    "NCCL watchdog, cause unknown": 7, "GPU: silent data corruption": 6, "GPU: thermal interface or sensor": 6,
    "host: SSD": 3, "host: power supply": 3, "host: chassis": 2, "host: IO board": 2,
    "a service that the run needs": 2, "host: CPU": 2, "host: memory": 2}.items()}

QI = "Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), table"
COMPARED = ("1F1B", "interleaved 1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
MEASURED = ("1F1B", "interleaved 1F1B", "ZB-1p", "ZB-2p")


@dataclass(frozen=True)
class BubbleRates:
    """`rates[m][schedule]` of a model on `num_ranks` ranks; interleaved 1F1B has `num_chunks` chunks a rank. Computed.

    The chunks of 1.5B and 6.2B are one layer each; those of the larger models are inferred from their rates.
    `throughput[m][schedule]`: samples per GPU and second. Measured.
    """

    model: str
    num_ranks: int
    num_chunks: int
    rates: dict[int, dict[str, Fact]]
    throughput: dict[int, dict[str, Fact]]


def table(*rows: tuple[int, tuple[float, ...]]) -> dict[int, dict[str, Fact]]:
    """{m: {schedule: Fact}} from rows of the paper's table 5, a rate for each of COMPARED."""
    return {m: {name: Fact(rate, "share of the step", f"{QI} 5", "2024")
                for name, rate in zip(COMPARED, rates, strict=True)} for m, rates in rows}


def measured_throughput(*rows: tuple[int, tuple[float, ...]]) -> dict[int, dict[str, Fact]]:
    """{m: {schedule: Fact}} from columns of the paper's table 4, a throughput for each of MEASURED."""
    return {m: {name: Fact(rate, "samples/s", f"{QI} 4", "2024") for name, rate in zip(MEASURED, rates, strict=True)}
            for m, rates in rows}


BUBBLE_RATES: tuple[BubbleRates, ...] = (
    BubbleRates("1.5B", 8, 3, table(
        (24, (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)),
        (32, (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)),
        (64, (0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026))), measured_throughput(
        (24, (11.8, 13.1, 12.9, 14.5)),
        (32, (12.5, 13.4, 13.4, 14.8)),
        (64, (13.6, 13.9, 14.2, 14.9)))),
    BubbleRates("6.2B", 8, 4, table(
        (24, (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)),
        (32, (0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022)),
        (64, (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010))), measured_throughput(
        (24, (3.50, 4.01, 3.88, 4.32)),
        (32, (3.70, 4.08, 4.00, 4.35)),
        (64, (4.03, 4.19, 4.20, 4.39)))),
    BubbleRates("14.6B", 16, 3, table(
        (48, (0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066)),
        (64, (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054)),
        (128, (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028))), measured_throughput(
        (48, (1.40, 1.54, 1.61, 1.81)),
        (64, (1.49, 1.59, 1.67, 1.83)),
        (128, (1.64, 1.66, 1.76, 1.85)))),
    BubbleRates("28.3B", 32, 2, table(
        (96, (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038)),
        (128, (0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029)),
        (256, (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018))), measured_throughput(
        (96, (0.76, 0.82, 0.87, 0.99)),
        (128, (0.80, 0.85, 0.90, 1.00)),
        (256, (0.88, 0.90, 0.96, 1.00)))),
)

PAPER_MODELS = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
PAPER_DEVICES = (1, 4, 16, 64, 256, 1024)
PAPER_TABLE_1: dict[tuple[str, int], tuple[float, float, float]] = {
    ("7.5B", 1): (120, 120, 120), ("7.5B", 4): (52.5, 41.3, 30), ("7.5B", 16): (35.6, 21.6, 7.5),
    ("7.5B", 64): (31.4, 16.6, 1.88), ("7.5B", 256): (30.4, 15.4, 0.47), ("7.5B", 1024): (30.1, 15.1, 0.12),
    ("128B", 1): (2048, 2048, 2048), ("128B", 4): (896, 704, 512), ("128B", 16): (608, 368, 128),
    ("128B", 64): (536, 284, 32), ("128B", 256): (518, 263, 8), ("128B", 1024): (513, 257, 2),
    ("1T", 1): (16000, 16000, 16000), ("1T", 4): (7000, 5500, 4000), ("1T", 16): (4750, 2875, 1000),
    ("1T", 64): (4187, 2218, 250), ("1T", 256): (4046, 2054, 62.5), ("1T", 1024): (4011, 2013, 15.6),
}
