"""How fast all-reduce was measured: bus bandwidth by message size, on clusters that readers may never touch.

Bus bandwidth is 2(n-1)/n M over the time: what each device sends in a bandwidth-optimal all-reduce, each second. It can
be compared with a link's one-way figure directly, whatever n.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

BEKMAN = "Bekman, Machine Learning Engineering, network chapter, all_reduce_bench"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class MeasuredAllReduce:
    """`bus_bandwidth[M]`: for messages of M bytes."""

    device: str
    num_devices: int
    num_nodes: int
    bus_bandwidth: dict[int, Fact]


def curve(*points: tuple[int, float]) -> dict[int, Fact]:
    return {num_bytes: Fact(gb_per_s, "GB/s", BEKMAN, "2025") for num_bytes, gb_per_s in points}


MEASURED_ALL_REDUCE: tuple[MeasuredAllReduce, ...] = (
    MeasuredAllReduce("A100", 8, 1, curve(
        (32 * KIB, 1.31), (MIB, 18.0), (4 * MIB, 72.33), (16 * MIB, 106.16), (64 * MIB, 171.54), (256 * MIB, 194.07),
        (GIB, 229.04), (16 * GIB, 234.89))),
    MeasuredAllReduce("H200", 8, 1, curve(
        (32 * KIB, 1.44), (MIB, 39.93), (16 * MIB, 219.89), (64 * MIB, 346.51), (256 * MIB, 436.15), (GIB, 463.58),
        (16 * GIB, 482.26))),
    MeasuredAllReduce("B200", 8, 1, curve(
        (MIB, 36.06), (16 * MIB, 254.96), (256 * MIB, 646.11), (GIB, 723.34), (16 * GIB, 845.67))),
    MeasuredAllReduce("B200", 32, 4, curve(
        (MIB, 5.37), (16 * MIB, 64.43), (256 * MIB, 229.09), (GIB, 361.99), (16 * GIB, 381.8))),
)


@dataclass(frozen=True)
class MeasuredAllGather:
    """`seconds[M]`: for an all-gather whose result is M bytes."""

    network: str
    num_devices: int
    num_nodes: int
    seconds: dict[int, Fact]


MB = 10**6
CHANG = "crazyguitar, aws-gpu-communication-benchmark (nccl-tests on p5.48xlarge), data/nccl_all_gather.csv"


def gathers(num_nodes: int, *algorithm_gb_per_s: float) -> MeasuredAllGather:
    """From GB/s of the result, for 32, 64, 128, 256, 512, 1024 and 2048 MB."""
    sizes = [(32 << doubling) * MB for doubling in range(7)]
    return MeasuredAllGather("EFA v2 (H100)", 8 * num_nodes, num_nodes, {
        M: Fact(round(M / (rate * 1e9), 6), "s", CHANG, "2025-10") for M, rate in zip(sizes, algorithm_gb_per_s)})


MEASURED_ALL_GATHER: tuple[MeasuredAllGather, ...] = (
    gathers(2, 140.06, 213.80, 250.18, 229.95, 293.89, 343.47, 350.49),
    gathers(4, 86.25, 143.42, 218.56, 261.53, 227.68, 297.83, 341.59),
    gathers(8, 47.03, 88.17, 145.94, 218.84, 265.41, 228.04, 298.37),
    gathers(16, 25.10, 47.36, 88.37, 145.18, 221.71, 263.94, 267.24),
    gathers(32, 12.43, 25.06, 45.83, 86.63, 146.96, 223.27, 263.80),
)

# Without the switch that adds up (NVLS), 8 H200, 16 GiB: what a ring has, and so all-gather and reduce-scatter.
RING_ON_NVLINK4 = Fact(367.61, "GB/s", BEKMAN, "2025")
