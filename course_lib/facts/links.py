"""What connects devices, and how many bytes a second it carries in ONE direction.

Data sheets like the sum of both directions (NVLink of an A100: "600 GB/s"), network people count bits. Here all are
bytes a second, one way, of one device: what alpha-beta needs.

    kind   "inside a node": NVLink through NVSwitch, PCIe    "between nodes": InfiniBand, Ethernet
           "torus": the links of a TPU to its neighbours, all of them together
"""

from dataclasses import dataclass

from course_lib.facts.fact import Fact

NVIDIA_V100 = "NVIDIA, Tesla V100 GPU architecture whitepaper"
NVIDIA_A100 = "NVIDIA, A100 Tensor Core GPU architecture whitepaper"
NVIDIA_H100 = "NVIDIA, H100 Tensor Core GPU architecture whitepaper"
NVIDIA_BLACKWELL = "NVIDIA, Blackwell architecture technical brief"
IBTA = "InfiniBand Trade Association, roadmap: 4x links"
PCI_SIG = "PCI-SIG, PCI Express base specification, 128b/130b"
SCALING_BOOK = "Austin et al., How to Scale Your Model, chapter TPUs"
NCCL_TUNING = "NCCL, src/graph/tuning.cc: latency of one ring step, protocol Simple"


@dataclass(frozen=True)
class Interconnect:
    """`one_way`: GB/s out of one device, over all the wires to its `neighbours` (1: a switch stands between)."""

    name: str
    kind: str
    one_way: Fact
    note: str
    neighbours: int = 1

    @property
    def one_way_bytes_per_s(self) -> float:
        return self.one_way.value * 1e9


def from_gbit(gbit_per_s: float, source: str, date: str) -> Fact:
    """A network's gigabits as the GB/s they are: 8 bits are a byte."""
    return Fact(gbit_per_s / 8, "GB/s", source, date)


def ethernet(gbit_per_s: int, standard: str, date: str) -> Interconnect:
    return Interconnect(f"Ethernet {gbit_per_s}G", "between nodes", from_gbit(gbit_per_s, f"IEEE {standard}", date),
                        f"{gbit_per_s} Gbit/s")


LINKS: tuple[Interconnect, ...] = (
    Interconnect("NVLink 2 (V100)", "inside a node", Fact(150, "GB/s", NVIDIA_V100, "2017"),
                 "6 links of 25 GB/s; advertised as 300 GB/s, both directions together"),
    Interconnect("NVLink 3 (A100)", "inside a node", Fact(300, "GB/s", NVIDIA_A100, "2020"),
                 "12 links of 25 GB/s; advertised as 600 GB/s, both directions together"),
    Interconnect("NVLink 4 (H100)", "inside a node", Fact(450, "GB/s", NVIDIA_H100, "2022"),
                 "18 links of 25 GB/s; advertised as 900 GB/s, both directions together"),
    Interconnect("NVLink 5 (B200)", "inside a node", Fact(900, "GB/s", NVIDIA_BLACKWELL, "2024"),
                 "18 links of 50 GB/s; advertised as 1.8 TB/s, both directions together"),
    Interconnect("PCIe 3.0 x16", "inside a node", Fact(15.75, "GB/s", PCI_SIG, "2010"), "16 lanes of 8 GT/s"),
    Interconnect("PCIe 4.0 x16", "inside a node", Fact(31.5, "GB/s", PCI_SIG, "2017"), "16 lanes of 16 GT/s"),
    Interconnect("PCIe 5.0 x16", "inside a node", Fact(63.0, "GB/s", PCI_SIG, "2019"), "16 lanes of 32 GT/s"),
    Interconnect("InfiniBand QDR", "between nodes", from_gbit(32, IBTA, "2008"), "40 Gbit/s on the wire, 8b/10b code"),
    Interconnect("InfiniBand FDR", "between nodes", from_gbit(54.54, IBTA, "2011"), "56.25 Gbit/s, 64b/66b code"),
    Interconnect("InfiniBand EDR", "between nodes", from_gbit(100, IBTA, "2014"), "100 Gbit/s"),
    Interconnect("InfiniBand HDR", "between nodes", from_gbit(200, IBTA, "2018"), "200 Gbit/s: one for each A100"),
    Interconnect("InfiniBand NDR", "between nodes", from_gbit(400, IBTA, "2021"), "400 Gbit/s: one for each H100"),
    ethernet(1, "802.3ab", "1999"),
    ethernet(10, "802.3ae", "2002"),
    ethernet(25, "802.3by", "2016"),
    ethernet(40, "802.3ba", "2010"),
    ethernet(100, "802.3ba", "2010"),
    ethernet(200, "802.3bs", "2017"),
    ethernet(400, "802.3bs", "2017"),
    Interconnect("TPU v4 ICI", "torus", Fact(6 * 45, "GB/s", SCALING_BOOK, "2025"),
                 "6 links of 45 GB/s in a 3D torus, 16 x 16 x 16 chips in a pod", neighbours=6),
    Interconnect("TPU v5p ICI", "torus", Fact(6 * 90, "GB/s", SCALING_BOOK, "2025"),
                 "6 links of 90 GB/s in a 3D torus, 16 x 20 x 28 chips in a pod", neighbours=6),
    Interconnect("TPU v5e ICI", "torus", Fact(4 * 45, "GB/s", SCALING_BOOK, "2025"),
                 "4 links of 45 GB/s in a 2D torus, 16 x 16 chips in a pod", neighbours=4),
)

# What one step costs however short the message: the alpha of NCCL's own cost model.
NCCL_STEP_LATENCY: dict[str, Fact] = {
    "inside a node": Fact(3.4, "us", NCCL_TUNING, "2021"),
    "between nodes": Fact(9.6, "us", NCCL_TUNING, "2021"),
}


def interconnect(name: str) -> Interconnect:
    """The one of this name. ValueError, with all names, where there is none."""
    for link in LINKS:
        if link.name == name:
            return link
    raise ValueError(f"no interconnect is called {name!r}: expected one of {', '.join(link.name for link in LINKS)}")
