"""How long pipelines were reported to wait: the bubble rates of the zero-bubble paper, by model, schedule and m.

A rate is (step - computing) / step, where the step of a schedule with split backward is the longest time from a rank's
own start to its own end. The authors computed the rates from times they had profiled for each model (F, I, W and a
message), so they hold no noise of a run, no optimizer and no data loading. ZB-1p and ZB-2p are what their search found
at the memory of 1F1B and at twice as much. Beside the rates: the throughput that they measured, on A100 in nodes of 8.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

QI = "Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024), table"
SCHEDULES = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")
MEASURED = ("1F1B", "1F1B-I", "ZB-1p", "ZB-2p")


@dataclass(frozen=True)
class BubbleRates:
    """`rates[m][schedule]` of a model on `num_ranks` ranks; 1F1B-I has `num_chunks` chunks a rank. Computed.

    The chunks of 1.5B and 6.2B are one layer each; those of the larger models are inferred from their rates.
    `throughput[m][schedule]`: samples per GPU and second. Measured.
    """

    model: str
    num_ranks: int
    num_chunks: int
    rates: dict[int, dict[str, Fact]]
    throughput: dict[int, dict[str, Fact]]


def table(*rows: tuple[int, tuple[float, ...]]) -> dict[int, dict[str, Fact]]:
    """{m: {schedule: Fact}} from rows of the paper's table 5, a rate for each of SCHEDULES."""
    return {m: {name: Fact(rate, "share of the step", f"{QI} 5", "2024")
                for name, rate in zip(SCHEDULES, rates, strict=True)} for m, rates in rows}


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
