"""How fast published runs of data parallelism were, device for device, as they took more devices.

Two questions are asked of more devices. Weak scaling: each keeps its tokens, and the batch grows. Strong scaling: the
batch stays, and each has fewer tokens. Only what is compared with itself is comparable: units differ between sources.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

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
