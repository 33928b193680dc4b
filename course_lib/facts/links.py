"""What connects devices: how many bytes a second it carries in ONE direction, and how long a message takes to start.

Data sheets like the sum of both directions (NVLink of an A100: "600 GB/s"), network people count bits. Here all are
bytes a second, one way, of one device: what alpha-beta needs.

    kind   "inside a node": NVLink through NVSwitch, PCIe    "between nodes": InfiniBand, Ethernet, EFA
           "mesh": inside a node each pair of devices has a wire of its own; the sum of a device's wires
           "torus": the links of a TPU to its neighbours, all of them together

Latencies are two numbers. `latency` is the wire's: half of a round trip of a few bytes, from program to program.
STEP_LATENCY is the library's: what one step of a ring takes, however short its message, with its kernels and
hand-shakes. Where nobody published one it is missing.
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

    latency: us of the wire, program to program; None where we know no published figure.
    """

    name: str
    kind: str
    one_way: Fact
    note: str
    neighbours: int = 1
    latency: Fact | None = None

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
                 "18 links of 25 GB/s; advertised as 900 GB/s, both ways"),
    Interconnect("NVLink 4 (H800)", "inside a node", Fact(200, "GB/s", EXPORT_WIRES, "2026"),
                 "8 links of 25 GB/s; advertised as 400 GB/s, both ways"),
    Interconnect("NVLink 5 (B200)", "inside a node", Fact(900, "GB/s", NVIDIA_BLACKWELL, "2024"),
                 "18 links of 50 GB/s; advertised as 1.8 TB/s, both ways"),
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
# TCP what a ring of gloo took, 2 x 3 steps. EFA's is not published, and is read off a curve (costs.reached).
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
