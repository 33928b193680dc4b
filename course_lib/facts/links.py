"""What connects devices: how many bytes a second it carries in ONE direction, and how long a message takes to start.

Data sheets like the sum of both directions (NVLink of an A100: "600 GB/s"), network people count bits. Here all are
bytes a second, one way, of one device: what alpha-beta needs.

    kind   "inside a node": NVLink through NVSwitch, PCIe    "between nodes": InfiniBand, Ethernet, EFA
           "mesh": inside a node each pair of devices has a wire of its own; the sum of a device's wires
           "torus": the links of a TPU to its neighbours, all of them together

Latencies are two numbers. `latency` is the wire's: half of a round trip of a few bytes, from program to program.
STEP_LATENCY is the library's: what one step of a ring takes, however short its message, with its kernels and
hand-shakes. Where nobody published one it is missing.

Collectives were measured by others, on clusters that readers may never touch. Bus bandwidth is what nccl-tests prints:
the bytes that each device sends in a bandwidth-optimal algorithm, over the time: 2(n-1)/n M in an all-reduce, (n-1)/n M
in an all-gather, a reduce-scatter and an all-to-all, M in a point-to-point ring. So one number can be held against a
wire, whatever n is. Times over a slow cable between two hosts are the authors': notebooks measure them anew, and where
a machine allows no namespaces, they draw these, and say that they are recorded.
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact, find

NVIDIA_V100 = "NVIDIA, Tesla V100 GPU architecture whitepaper"
NVIDIA_A100 = "NVIDIA, A100 Tensor Core GPU architecture whitepaper"
NVIDIA_H100 = "NVIDIA, H100 Tensor Core GPU architecture whitepaper"
NVIDIA_BLACKWELL = "NVIDIA, Blackwell architecture technical brief"
IBTA = "InfiniBand Trade Association, roadmap: 4x links"
PCI_SIG = "PCI-SIG, PCI Express base specification, 128b/130b"
SCALING_BOOK = "Austin et al., How to Scale Your Model, chapter TPUs"
WIRE_TABLES = "Bekman, Machine Learning Engineering, network chapter, tables of what connects devices in a node"
EXPORT_WIRES = "NVIDIA H800 and A800, as described by AI Wiki, NVIDIA A800, and Philisun, NVIDIA H800 vs H100"
GH200_PAPER = "NVIDIA, GH200 Grace Hopper Superchip architecture whitepaper: four of them, each pair over 6 links"
HUAWEI = "Huawei, Atlas 800T A2: HCCS, advertised as 392 GB/s, both directions together"
NCCL_TUNING = "NCCL, src/graph/tuning.cc: latency of one ring step, protocol Simple"
GLOO_README = "gloo, README: all-reduce of one number on 4 machines over TCP, 40 Gbit Ethernet, half of them faster"
AWS_INSTANCES = "Bekman, Machine Learning Engineering, network chapter, table of nodes: EFA of AWS"
HDR_LATENCY = "Microsoft, Azure documentation, HBv3 performance: RDMA, 1 byte"
TCP_10G = "F-Stack issue 540: sockperf, kernel TCP, 1,500 bytes, two PCs without a switch"
TCP_1G = "Love, Gigabit Ethernet MPI performance tests, nw-grid.ac.uk: 6 us above Open-MX's 9, without a switch"


@dataclass(frozen=True)
class Interconnect:
    """`one_way`: GB/s out of one device, over all the wires to its `neighbours` (1: a switch stands between).

    latency: us of the wire, program to program; None where we know no published figure. adds_up: its switch can, in an
    all-reduce.
    """

    name: str
    kind: str
    one_way: Fact
    note: str
    neighbours: int = 1
    latency: Fact | None = None
    adds_up: bool = False

    @property
    def technology(self) -> str:
        """Such as "NVLink": what STEP_LATENCY goes by."""
        return self.name.split()[0]

    @property
    def one_way_bytes_per_s(self) -> float:
        """Out of one device in one direction: half of what is often advertised."""
        return self.one_way.value * 1e9


def from_gbit(gbit_per_s: float, source: str, date: str) -> Fact:
    """A network's gigabits as the GB/s they are: 8 bits are a byte."""
    return Fact(gbit_per_s / 8, "GB/s", source, date)


def ethernet(gbit_per_s: int, standard: str, date: str, latency: Fact | None = None) -> Interconnect:
    """Ethernet of so many Gbit/s, an eighth of that in GB/s."""
    return Interconnect(f"Ethernet {gbit_per_s}G", "between nodes", from_gbit(gbit_per_s, f"IEEE {standard}", date),
                        f"{gbit_per_s} Gbit/s", latency=latency)


LINKS: tuple[Interconnect, ...] = (
    Interconnect("NVLink 2 (V100)", "inside a node", Fact(150, "GB/s", NVIDIA_V100, "2017"),
                 "6 links of 25 GB/s; advertised as 300 GB/s, both ways"),
    Interconnect("NVLink 3 (A100)", "inside a node", Fact(300, "GB/s", NVIDIA_A100, "2020"),
                 "12 links of 25 GB/s; advertised as 600 GB/s, both ways"),
    Interconnect("NVLink 3 (A800)", "inside a node", Fact(200, "GB/s", EXPORT_WIRES, "2026"),
                 "8 links of 25 GB/s; advertised as 400 GB/s, both ways"),
    Interconnect("NVLink 4 (H100)", "inside a node", Fact(450, "GB/s", NVIDIA_H100, "2022"),
                 "18 links of 25 GB/s; advertised as 900 GB/s, both ways", adds_up=True),
    Interconnect("NVLink 4 (H800)", "inside a node", Fact(200, "GB/s", EXPORT_WIRES, "2026"),
                 "8 links of 25 GB/s; advertised as 400 GB/s, both ways", adds_up=True),
    Interconnect("NVLink 5 (B200)", "inside a node", Fact(900, "GB/s", NVIDIA_BLACKWELL, "2024"),
                 "18 links of 50 GB/s; advertised as 1.8 TB/s, both ways", adds_up=True),
    Interconnect("NVLink 4 (GH200)", "mesh", Fact(450, "GB/s", GH200_PAPER, "2024", unverified=True),
                 "6 links of 25 GB/s to each of three others, without a switch", neighbours=3),
    Interconnect("Infinity Fabric (MI300X)", "mesh", Fact(7 * 64, "GB/s", WIRE_TABLES, "2026-08"),
                 "one link of 64 GB/s to each of seven others, without a switch", neighbours=7),
    Interconnect("HCCS (Ascend 910B)", "mesh", Fact(7 * 28, "GB/s", HUAWEI, "2023", unverified=True),
                 "one link of 28 GB/s to each of seven others, without a switch", neighbours=7),
    Interconnect("NVLink-C2C", "to the host", Fact(450, "GB/s", WIRE_TABLES, "2026-08"),
                 "Grace's memory to its GPUs; advertised as 900 GB/s, both ways"),
    Interconnect("PCIe 3.0 x16", "inside a node", Fact(15.75, "GB/s", PCI_SIG, "2010"), "16 lanes of 8 GT/s"),
    Interconnect("PCIe 4.0 x16", "inside a node", Fact(31.5, "GB/s", PCI_SIG, "2017"), "16 lanes of 16 GT/s"),
    Interconnect("PCIe 5.0 x16", "inside a node", Fact(63.0, "GB/s", PCI_SIG, "2019"), "16 lanes of 32 GT/s"),
    Interconnect("InfiniBand QDR", "between nodes", from_gbit(32, IBTA, "2008"), "40 Gbit/s on the wire, 8b/10b code"),
    Interconnect("InfiniBand FDR", "between nodes", from_gbit(54.54, IBTA, "2011"), "56.25 Gbit/s, 64b/66b code"),
    Interconnect("InfiniBand EDR", "between nodes", from_gbit(100, IBTA, "2014"), "100 Gbit/s"),
    Interconnect("InfiniBand HDR", "between nodes", from_gbit(200, IBTA, "2018"), "200 Gbit/s: one for each A100",
                 latency=Fact(1.2, "us", HDR_LATENCY, "2023")),
    Interconnect("InfiniBand NDR", "between nodes", from_gbit(400, IBTA, "2021"), "400 Gbit/s: one for each H100"),
    Interconnect("InfiniBand XDR", "between nodes", from_gbit(800, IBTA, "2023"), "800 Gbit/s: one for each B300"),
    Interconnect("EFA v2", "between nodes", from_gbit(400, AWS_INSTANCES, "2026-08"),
                 "4 cards of 100 Gbit/s for each H100 of an AWS p5"),
    Interconnect("EFA v4", "between nodes", from_gbit(400, AWS_INSTANCES, "2026-08"),
                 "one card of 400 Gbit/s for each B200 of an AWS p6"),
    ethernet(1, "802.3ab", "1999", Fact(15, "us", TCP_1G, "2009")),
    ethernet(10, "802.3ae", "2002", Fact(17.8, "us", TCP_10G, "2020")),
    ethernet(25, "802.3by", "2016"),
    ethernet(40, "802.3ba", "2010"),
    ethernet(100, "802.3ba", "2010"),
    ethernet(200, "802.3bs", "2017"),
    ethernet(400, "802.3bs", "2017"),
    Interconnect("TPU v4 ICI", "torus", Fact(6 * 45, "GB/s", SCALING_BOOK, "2025"),
                 "6 links of 45 GB/s in a 3D torus, 16 x 16 x 16 chips in a pod", neighbours=6),
    Interconnect("TPU v6e ICI", "torus", Fact(4 * 90, "GB/s", SCALING_BOOK, "2025"),
                 "4 links of 90 GB/s in a 2D torus, 16 x 16 chips in a pod", neighbours=4),
    Interconnect("TPU v5p ICI", "torus", Fact(6 * 90, "GB/s", SCALING_BOOK, "2025"),
                 "6 links of 90 GB/s in a 3D torus, 16 x 20 x 28 chips in a pod", neighbours=6),
    Interconnect("TPU v5e ICI", "torus", Fact(4 * 45, "GB/s", SCALING_BOOK, "2025"),
                 "4 links of 45 GB/s in a 2D torus, 16 x 16 chips in a pod", neighbours=4),
)

# What one step of a ring costs however short the message, by technology: for NCCL the alpha of its own cost model, for
# TCP what a ring of gloo took, 2 x 3 steps. EFA's is not published, and is read off a curve (costs.links).
STEP_LATENCY: dict[str, Fact] = {
    "NVLink": Fact(3.4, "us", NCCL_TUNING, "2026-06"),
    "PCIe": Fact(5.7, "us", NCCL_TUNING, "2026-06"),
    "InfiniBand": Fact(14.0, "us", NCCL_TUNING, "2026-06"),
    "Ethernet": Fact(263 / 6, "us", GLOO_README, "2020"),
}
# A step of a tree, which passes on pieces of 256 kB, by kind: NCCL's own, of 2020. Later versions say 4 and 14, which
# is less than the measured all-reduces on 4 to 32 nodes take.
NCCL_2020 = "NCCL 2.8, src/graph/tuning.cc: latency of one tree step, protocol Simple"
TREE_STEP_LATENCY: dict[str, Fact] = {
    "inside a node": Fact(28, "us", NCCL_2020, "2020"),
    "between nodes": Fact(50, "us", NCCL_2020, "2020"),
}
# Llama 3 405B's cluster: inside a pod every GPU has the full speed of its card, between pods all together a seventh.
LLAMA_3_PAPER = ("Llama team, The Llama 3 Herd of Models, section 3.3.1", "2024")
LLAMA_3_POD = Fact(3072, "GPUs", *LLAMA_3_PAPER)
LLAMA_3_OVERSUBSCRIPTION = Fact(7, "times", *LLAMA_3_PAPER)


def interconnect(name: str) -> Interconnect:
    """The one of this name. ValueError, with all names, where there is none."""
    return find("interconnect", name, LINKS)


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


@dataclass(frozen=True)
class RecordedTimes:
    """`seconds` in the order in which the notebook measures them, of one run. `date` is the day of that run."""

    seconds: tuple[float, ...]
    machine: str
    date: str

    def __str__(self) -> str:
        return f"recorded on the authors' machine: {self.machine}, {self.date}"


MACHINE = "Linux, two cores, a cable of 100 Mbit/s between two namespaces"

# An MLP forward and backward for 64, 128, 256 and 512 tokens: cut over two ranks of one host, then of two hosts.
CUT_MLP_TIMES = RecordedTimes((0.0047, 0.0067, 0.0113, 0.0194, 0.0131, 0.0251, 0.0518, 0.1040), MACHINE, "2026-11-22")
# A training step of 8 and of 32 rows with dp=2, tp=2: dp across the cable, then tp across it.
TWO_HOST_STEP_TIMES = RecordedTimes((0.0931, 0.1174, 0.1322, 0.4913), MACHINE, "2026-11-23")
