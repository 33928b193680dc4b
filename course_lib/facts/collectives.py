"""How fast collectives were measured, by the size of the message, on clusters that readers may never touch.

Bus bandwidth is what nccl-tests prints: the bytes that each device sends in a bandwidth-optimal algorithm, over the
time: 2(n-1)/n M in an all-reduce, (n-1)/n M in an all-gather, a reduce-scatter and an all-to-all, M in a point-to-point
ring. So one number can be held against a wire, whatever n is.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

BEKMAN = ("Bekman, Machine Learning Engineering, network chapter: all_reduce_bench, nccl-tests", "2026-08")
CHANG = ("crazyguitar, aws-gpu-communication-benchmark (nccl-tests, p5.48xlarge, out of place), data/nccl_", "2025-10")
TOGETHER = ("togethercomputer/together-dgxc-benchmarking, worklog/2026-04-20_nccl_collective_scaling_report.md",
            "2026-04")
AZURE = ("microsoft/mscclpp, docs/performance-ndmv4.md (nccl-tests, NCCL 2.17, in place)", "2023")
KIB, MIB, GIB, MB = 1 << 10, 1 << 20, 1 << 30, 10**6


@dataclass(frozen=True)
class MeasuredCollective:
    """`bus_bandwidth[M]`: with M bytes of the whole message. `network`: between the nodes, one of facts.LINKS; of no
    matter where there is one node."""

    op: str
    device: str
    network: str
    num_devices: int
    num_nodes: int
    bus_bandwidth: dict[int, Fact]

    @property
    def name(self) -> str:
        """Operation, devices and nodes in words, such as "all-reduce, 16 x A100, 2 nodes"."""
        op = "point-to-point ring" if self.op == "ring" else self.op.replace("_", "-")
        nodes = f"{self.num_nodes} node{'s' * (self.num_nodes > 1)}"
        return f"{op}, {self.num_devices} x {self.device}, {nodes}"


def curve(source: tuple[str, str], points: dict[int, float]) -> dict[int, Fact]:
    """{bytes: Fact in GB/s} from plain numbers, all of one `source`."""
    return {num_bytes: Fact(gb_per_s, "GB/s", *source) for num_bytes, gb_per_s in points.items()}


def by_bekman(device: str, num_devices: int, num_nodes: int, points: dict[int, float], op: str = "all_reduce"
              ) -> MeasuredCollective:
    """Inside a node, but for the B200: these are on AWS."""
    return MeasuredCollective(op, device, "EFA v4", num_devices, num_nodes, curve(BEKMAN, points))


def on_efa(op: str, num_nodes: int, *gb_per_s: float) -> MeasuredCollective:
    """For 32, 64, 128 MB and so on, each twice the one before."""
    source, date = CHANG
    points = {(32 << doubling) * MB: value for doubling, value in enumerate(gb_per_s)}
    return MeasuredCollective(op, "H100", "EFA v2", 8 * num_nodes, num_nodes,
                              curve((f"{source}{op.replace('all_to_all', 'alltoall')}.csv", date), points))


def on_azure(num_devices: int, num_nodes: int, **points: dict[int, float]) -> tuple[MeasuredCollective, ...]:
    """Measured on Azure's A100 nodes: for each operation {bytes: GB/s}."""
    return tuple(MeasuredCollective(op, "A100", "InfiniBand HDR", num_devices, num_nodes, curve(AZURE, of_op))
                 for op, of_op in points.items())


def on_ndr(op: str, **by_nodes: float) -> tuple[MeasuredCollective, ...]:
    """8 GiB on B200s, by nodes; "ring": each rank sends to the next, all at once (nccl-tests' sendrecv)."""
    return tuple(MeasuredCollective(op, "B200", "InfiniBand NDR", 8 * int(nodes[1:]), int(nodes[1:]),
                                    curve(TOGETHER, {8 * GIB: gb_per_s})) for nodes, gb_per_s in by_nodes.items())


MEASURED_COLLECTIVES: tuple[MeasuredCollective, ...] = (
    by_bekman("A100", 8, 1, {
        32 * KIB: 1.31, MIB: 18.0, 4 * MIB: 72.33, 16 * MIB: 106.16, 64 * MIB: 171.54, 256 * MIB: 194.07, GIB: 229.04,
        16 * GIB: 234.89}),
    by_bekman("H200", 8, 1, {
        32 * KIB: 1.44, MIB: 39.93, 16 * MIB: 219.89, 64 * MIB: 346.51, 256 * MIB: 436.15, GIB: 463.58,
        16 * GIB: 482.26}),
    # Where the switch adds up: nobody uses it for four devices, and its gain grows with their number.
    *(by_bekman("H200", n, 1, {8 * GIB: gb_per_s}) for n, gb_per_s in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0))),
    by_bekman("H200", 8, 1, {16 * GIB: 361.4}, "all_gather"),
    by_bekman("H200", 8, 1, {16 * GIB: 362.9}, "reduce_scatter"),
    by_bekman("B200", 8, 1, {MIB: 36.06, 16 * MIB: 254.96, 256 * MIB: 646.11, GIB: 723.34, 16 * GIB: 845.67}),
    by_bekman("B200", 32, 4, {MIB: 5.37, 16 * MIB: 64.43, 256 * MIB: 229.09, GIB: 361.99, 16 * GIB: 381.8}),
    on_efa("all_gather", 2, 131.30, 200.43, 234.54, 215.58, 275.52, 322.00, 328.58),
    on_efa("all_gather", 4, 83.56, 138.94, 211.73, 253.36, 220.57, 288.53, 330.92),
    on_efa("all_gather", 8, 46.29, 86.80, 143.66, 215.43, 261.26, 224.47, 293.71),
    on_efa("all_gather", 16, 24.90, 46.99, 87.68, 144.05, 219.97, 261.88, 265.15),
    on_efa("all_gather", 32, 12.38, 24.96, 45.65, 86.30, 146.38, 222.40, 262.77),
    on_efa("all_reduce", 2, 147.32, 207.00, 305.13, 364.46, 395.99, 435.14, 445.05, 465.81, 477.71),
    on_efa("all_reduce", 4, 95.38, 152.41, 229.48, 273.34, 278.41, 280.30, 347.57, 354.45, 356.99),
    on_efa("all_reduce", 8, 86.74, 103.85, 156.33, 232.09, 272.62, 274.47, 278.15, 351.32, 355.36),
    on_efa("all_reduce", 16, 74.85, 92.39, 129.20, 148.11, 223.80, 269.23, 270.91, 306.15, 356.27),
    on_efa("all_reduce", 32, 66.34, 83.60, 115.78, 137.99, 156.83, 220.08, 269.47, 302.81, 321.10),
    on_efa("all_to_all", 2, 44.79, 62.16, 68.79, 74.26, 75.82, 77.73, 79.25),
    on_efa("all_to_all", 4, 34.45, 43.13, 52.56, 54.28, 53.84, 53.75, 54.07),
    on_efa("all_to_all", 8, 28.67, 34.69, 36.20, 44.40, 46.57, 48.31, 49.63),
    on_efa("all_to_all", 16, 24.63, 26.08, 31.45, 34.77, 40.07, 42.36, 44.23),
    on_efa("all_to_all", 32, 19.72, 22.92, 27.02, 30.21, 33.06, 38.68, 40.78),
    *on_ndr("all_gather", n1=654.2, n2=343.1, n4=334.2, n8=312.7, n16=310.9, n32=317.2, n64=286.2),
    *on_ndr("ring", n1=655.5, n2=43.4, n4=43.0, n8=25.0, n16=15.3, n32=15.3, n64=15.7),
    *on_azure(8, 1, all_gather={GIB: 253.59}, all_reduce={GIB: 231.45}, all_to_all={GIB: 254.69}),
    *on_azure(2, 2, all_gather={GIB: 15.84}, all_reduce={GIB: 18.65}, all_to_all={GIB: 15.48}),
    *on_azure(16, 2, all_gather={GIB: 177.05, 4 * GIB: 186.01}, all_reduce={GIB: 183.82, 4 * GIB: 188.18},
              all_to_all={GIB: 37.80, 4 * GIB: 37.81}),
)

# Without the switch that adds up (NVLS), 8 H200, 16 GiB: what a ring has, and so all-gather and reduce-scatter.
RING_ON_NVLINK4 = Fact(367.61, "GB/s", *BEKMAN)


def measured_collectives(op: str = "", device: str = "", num_nodes: int = 0) -> tuple[MeasuredCollective, ...]:
    """The measured curves of this operation, device and number of nodes; "" or 0 for any."""
    return tuple(each for each in MEASURED_COLLECTIVES
                 if op in ("", each.op) and device in ("", each.device) and num_nodes in (0, each.num_nodes))


# A shared cluster of H100 on a working day, 256 MB, nodes of eight: (all-reduce, all-gather, reduce-scatter) by nodes.
# The figure does not say which bandwidth it draws; on one node the all-reduce is Bekman's bus bandwidth. Its bands
# reach from a third to five times these.
PLAYBOOK = ("Hugging Face, Ultra-Scale Playbook, figure 'Communication bandwidth by number of nodes'", "2025")
SHARED_CLUSTER: dict[int, tuple[Fact, Fact, Fact]] = {
    nodes: tuple(Fact(value, "GB/s", *PLAYBOOK) for value in of_ops) for nodes, of_ops in {
        1: (435.97, 249.85, 249.73), 2: (361.75, 184.61, 181.55), 4: (160.14, 118.97, 115.76), 8: (99.56, 69.00, 68.55),
        16: (84.74, 54.97, 54.52), 32: (64.93, 27.97, 27.94), 64: (32.94, 11.04, 11.07)}.items()}
