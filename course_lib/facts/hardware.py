"""What one device can do: operations a second, memory, watts; and servers full of them.

Peaks are DENSE. Data sheets since the A100 print twice as much "with sparsity", which asks for weights of which half
are zero in a fixed pattern: training has none. A peak is what the arithmetic units could do if they never waited. GB
are 1e9 bytes, as the makers print them. What devices and electricity cost are the most volatile numbers of the course,
each with its date.
"""

from dataclasses import dataclass, replace

from course_lib.facts.fact import Fact, find
from course_lib.facts.links import interconnect

V100_SHEET = "NVIDIA, Tesla V100 data sheet (SXM2, 32 GB)"
A100_SHEET = "NVIDIA, A100 data sheet (SXM4, 80 GB), without sparsity"
A100_40_SHEET = "NVIDIA, A100 Tensor Core GPU architecture whitepaper (40 GB)"
H100_SHEET = "NVIDIA, H100 data sheet (SXM5), halved where it says with sparsity"
H200_SHEET = "NVIDIA, H200 data sheet (SXM5), halved where it says with sparsity"
B200_SHEET = "NVIDIA, Blackwell brief (HGX B200) and DGX B200 data sheet, halved where it says with sparsity"
TPU_V4 = "Google Cloud, TPU v4 documentation; Jouppi et al. 2023, TPU v4"
SCALING_BOOK = "Austin et al., How to Scale Your Model, chapter TPUs"
SPEC_TABLES = "Bekman, Machine Learning Engineering, accelerator tables: peaks without sparsity, memory, power"
VERDA = "Verda, NVIDIA GB300 NVL72: GPU Architecture and Performance: memory that a program sees"


@dataclass(frozen=True)
class Accelerator:
    """`peaks` by number format, in TFLOP/s (TOP/s for int8). `power`: of the device alone, None where it is not
    published.

    `links`: names in `facts.LINKS`: inside a node, and a card between nodes. `per_node`: how many the wire inside
    joins, as they are usually sold. `cards_per_node`: 0 where each device has a card of its own. `host`: in
    `facts.LINKS`, what leads to the host's memory. `architecture`: such as "Hopper", "" where the device is alone in
    its own. `chip`: the device that has the same, "" for none.
    """

    name: str
    kind: str  # "GPU", "TPU" or "NPU"
    year: int
    peaks: dict[str, Fact]
    memory: Fact  # GB
    memory_bandwidth: Fact  # GB/s
    power: Fact | None  # W
    links: tuple[str, ...] = ()
    per_node: int = 8
    cards_per_node: int = 0
    host: str = "PCIe 5.0 x16"
    architecture: str = ""
    chip: str = ""

    def peak_flops_per_s(self, number_format: str = "bf16") -> float:
        """FLOP/s. ValueError, with what there is, for a format that this device has no units for."""
        if number_format not in self.peaks:
            raise ValueError(f"{self.name} has no peak for {number_format!r}: expected one of {', '.join(self.peaks)}")
        return self.peaks[number_format].value * 1e12

    @property
    def half_precision(self) -> str:
        """The 16-bit format that training uses here: bf16, or fp16 on what is too old for it."""
        return "bf16" if "bf16" in self.peaks else "fp16"

    @property
    def in_switched_eights(self) -> bool:
        """Whether nodes of it have eight, behind one switch and with a network card each."""
        one_switch = bool(self.links) and interconnect(self.links[0]).kind == "inside a node"
        return self.per_node == 8 and one_switch and not self.cards_per_node

    @property
    def generation(self) -> str:
        """Its architecture, or its own name where it is alone in it."""
        return self.architecture or self.name

    @property
    def memory_bytes(self) -> float:
        """Bytes of one device's memory; a GB is 1e9."""
        return self.memory.value * 1e9

    @property
    def memory_bytes_per_s(self) -> float:
        """Between the device and its own memory."""
        return self.memory_bandwidth.value * 1e9


def peaks(source: str, date: str, unverified: bool = False, **tflops: float) -> dict[str, Fact]:
    """{number format: Fact} from keywords such as bf16=989, in 1e12 operations a second."""
    return {name: Fact(value, "TOP/s" if name == "int8" else "TFLOP/s", source, date, unverified)
            for name, value in tflops.items()}


def gpu(name: str, year: int, sheet: str, date: str, memory: float | Fact, gb_per_s: float, watts: float | Fact,
        links: tuple[str, ...], per_node: int = 8, cards_per_node: int = 0, host: str = "PCIe 5.0 x16",
        architecture: str = "", chip: str = "", **tflops: float) -> Accelerator:
    """A GPU, all of whose numbers stand on one data sheet: memory in GB, its rate in GB/s, watts, and TFLOP/s by number
    format.
    """
    memory = memory if isinstance(memory, Fact) else Fact(memory, "GB", sheet, date)
    power = watts if isinstance(watts, Fact) else Fact(watts, "W", sheet, date)
    return Accelerator(name, "GPU", year, peaks(sheet, date, **tflops), memory, Fact(gb_per_s, "GB/s", sheet, date),
                       power, links, per_node, cards_per_node, host, architecture, chip)


def tpu(name: str, year: int, bf16: float, memory_gb: float, gb_per_s: float, power: Fact | None,
        **more: float) -> Accelerator:
    """A TPU as Austin et al. 2025 describe it: bf16 in TFLOP/s, memory in GB, its rate in GB/s."""
    date = "2025"
    return Accelerator(name, "TPU", year, peaks(SCALING_BOOK, date, bf16=bf16, **more),
                       Fact(memory_gb, "GB", SCALING_BOOK, date), Fact(gb_per_s, "GB/s", SCALING_BOOK, date), power,
                       (f"{name} ICI",), host="PCIe 3.0 x16")


OLD_HOST = "PCIe 4.0 x16"
C2C = "NVLink-C2C"

# Sold in China in the place of an A100 and an H100: the same chip with slower wires.
EXPORT = "AI Wiki, NVIDIA A800; Philisun, NVIDIA H800 vs H100: as the A100 and the H100, except for NVLink and FP64"
H20_CARD = "Will It Run AI, NVIDIA H20 96GB; zangshuxian.com, H20 beside H100: peaks without sparsity"
# On GeForce cards products that add up in 32 bits, as training does, run at half of the advertised peak.
RTX_4090_SHEET = "HMC Tech, GeForce RTX 4090, peaks of products that add up in 32 bits, without sparsity"
RTX_5090_SHEET = "CodeSOTA and Spheron, GeForce RTX 5090: 16 bits dense and adding up in 32, the others in proportion"
ASCEND = "volcengine/verl, verl/utils/flops_counter.py: peak of 910B"
ASCEND_SHEET = "Huawei, Atlas 800T A2: an Ascend 910B of 64 GB"

ACCELERATORS: tuple[Accelerator, ...] = (
    gpu("V100", 2017, V100_SHEET, "2018", 32, 900, 300, ("NVLink 2 (V100)", "InfiniBand EDR"), host="PCIe 3.0 x16",
        architecture="Volta", fp64=7.8, fp32=15.7, fp16=125),
    gpu("A100 40GB", 2020, A100_40_SHEET, "2020", 40, 1555, 400, ("NVLink 3 (A100)", "InfiniBand HDR"), host=OLD_HOST,
        architecture="Ampere", chip="A100", fp64=9.7, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624),
    gpu("A100", 2020, A100_SHEET, "2021", 80, 2039, 400, ("NVLink 3 (A100)", "InfiniBand HDR"), host=OLD_HOST,
        architecture="Ampere", fp64=9.7, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624),
    gpu("A800", 2022, EXPORT, "2026", 80, 2039, 400, ("NVLink 3 (A800)", "InfiniBand HDR"), host=OLD_HOST,
        architecture="Ampere", chip="A100", fp64=9.7, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624),
    gpu("H100", 2022, H100_SHEET, "2023", 80, 3350, 700, ("NVLink 4 (H100)", "InfiniBand NDR"),
        architecture="Hopper", fp64=34, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("H100 PCIe", 2022, SPEC_TABLES, "2026-08", 80, 2000,
        Fact(350, "W", "NVIDIA, H100 data sheet (PCIe)", "2023", unverified=True), ("PCIe 5.0 x16", "InfiniBand NDR"),
        cards_per_node=4, architecture="Hopper",
        fp32=51, tf32=378, fp16=756, bf16=756, fp8=1513, int8=1513),
    gpu("H800", 2023, EXPORT, "2026", 80, 3350, 700, ("NVLink 4 (H800)", "InfiniBand NDR"),
        architecture="Hopper", chip="H100", fp64=1, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("H200", 2023, H200_SHEET, "2024", 141, 4800, 700, ("NVLink 4 (H100)", "InfiniBand NDR"),
        architecture="Hopper", chip="H100", fp64=34, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("GH200", 2023, SPEC_TABLES, "2026-08", 96, 4000,
        Fact(1000, "W", "NVIDIA, GH200 data sheet: the most, with its processor", "2024", unverified=True),
        ("NVLink 4 (GH200)", "InfiniBand NDR"), 4, host=C2C,
        architecture="Hopper", fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("H20", 2023, H20_CARD, "2026", 96, 4000, 400, ("NVLink 4 (H100)", "InfiniBand NDR"),
        architecture="Hopper", fp64=1, fp32=44, tf32=74, fp16=148, bf16=148, fp8=296, int8=296),
    gpu("B200", 2024, B200_SHEET, "2024", 180, 8000, 1000, ("NVLink 5 (B200)", "InfiniBand NDR"),
        architecture="Blackwell", fp64=40, fp32=80, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=9000, int8=4500),
    gpu("GB200", 2024, SPEC_TABLES, "2026-08", 186, 8000, 1200, ("NVLink 5 (B200)", "InfiniBand NDR"), 72, host=C2C,
        architecture="Blackwell", fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, fp4=10_000, int8=5000),
    gpu("B300", 2025, SPEC_TABLES, "2026-08", Fact(270, "GB", VERDA, "2026"), 8000, 1000,
        ("NVLink 5 (B200)", "InfiniBand XDR"), architecture="Blackwell",
        fp32=80, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=12_600),
    gpu("GB300", 2025, SPEC_TABLES, "2026-08", Fact(279, "GB", VERDA, "2026"), 8000, 1400,
        ("NVLink 5 (B200)", "InfiniBand XDR"), 72, host=C2C,
        architecture="Blackwell", chip="GB200", fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000, fp4=15_000),
    gpu("MI300X", 2023, SPEC_TABLES, "2026-08", 192, 5300, 750, ("Infinity Fabric (MI300X)", "InfiniBand NDR"),
        fp32=163.4, tf32=653.7, fp16=1300, bf16=1300, fp8=2610, int8=2600),
    # Cards in slots: nodes of eight share the network cards that a server has, a workstation one.
    gpu("L40S", 2023, SPEC_TABLES, "2026-08", 48, 864, 350, ("PCIe 4.0 x16", "Ethernet 200G"), cards_per_node=4,
        host=OLD_HOST, fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733, int8=733),
    gpu("RTX 4090", 2022, RTX_4090_SHEET, "2026", 24, 1010, 450, ("PCIe 4.0 x16", "Ethernet 10G"), cards_per_node=1,
        host=OLD_HOST, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6),
    gpu("RTX 5090", 2025, RTX_5090_SHEET, "2026", 32, 1792, 575, ("PCIe 5.0 x16", "Ethernet 10G"), cards_per_node=1,
        fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5, fp8=419, fp4=1676, int8=838),
    tpu("TPU v4", 2020, 275, 32, 1200, Fact(192, "W", TPU_V4 + ", the most measured", "2023"), int8=275),
    tpu("TPU v5e", 2023, 197, 16, 810, None, int8=394),
    tpu("TPU v5p", 2023, 459, 96, 2800, None, int8=918),
    tpu("TPU v6e", 2024, 920, 32, 1600, None, int8=1840),
    Accelerator("Ascend 910B", "NPU", 2023, peaks(ASCEND, "2026", fp16=354, bf16=354),
                Fact(64, "GB", ASCEND_SHEET, "2023", unverified=True),
                Fact(1600, "GB/s", ASCEND_SHEET, "2023", unverified=True),
                Fact(310, "W", "boardor.com, Huawei Ascend 910B Outperforms H20", "2025"),
                ("HCCS (Ascend 910B)", "Ethernet 200G"), host=OLD_HOST),
)


@dataclass(frozen=True)
class MeasuredMatmul:
    """The most that a large matrix product was seen to reach, of the peak on the data sheet."""

    device: str
    achieved: Fact


MEASURED_MATMUL: tuple[MeasuredMatmul, ...] = tuple(
    MeasuredMatmul(device, Fact(tflops, "TFLOP/s", "Bekman, Machine Learning Engineering, MAMF table, bf16", "2025"))
    for device, tflops in (("A100", 271.2), ("H100", 794.5), ("GH200", 828.6), ("B200", 1745), ("GB200", 1822),
                           ("B300", 1769), ("MI300X", 668.4)))


@dataclass(frozen=True)
class System:
    """A server with everything in it: `power` is the most that all of it draws, fans and processors too."""

    name: str
    device: str
    num_devices: int
    power: Fact


SYSTEMS: tuple[System, ...] = (
    System("DGX A100", "A100", 8, Fact(6500, "W", "NVIDIA, DGX A100 data sheet", "2020")),
    System("DGX H100", "H100", 8, Fact(10200, "W", "NVIDIA, DGX H100 data sheet", "2022")),
    System("DGX B200", "B200", 8, Fact(14300, "W", "NVIDIA, DGX B200 data sheet", "2024")),
)

# The first machine above 1 EFLOP/s in TOP500's test, which is in 64 bits; and the same machine in mixed precision.
ORNL = ("Oak Ridge National Laboratory, announcement of Frontier's first place in TOP500", "2022-05")
FRONTIER: dict[str, Fact] = {"64 bits": Fact(1.1, "EFLOP/s", *ORNL), "mixed precision": Fact(6.88, "EFLOP/s", *ORNL)}


def accelerator(name: str) -> Accelerator:
    """The one of this name. ValueError, with all names, where there is none."""
    return find("accelerator", name, ACCELERATORS)


def reported_as(name: str) -> Accelerator | None:
    """The device that its driver calls `name`, such as "NVIDIA H100 80GB HBM3"; None where there is none here.

    >>> reported_as("NVIDIA H100 80GB HBM3").name
    'H100'
    """
    words = set(name.replace("-", " ").split())
    known = [device for device in ACCELERATORS if words.issuperset(device.name.split())]
    return max(known, key=lambda device: len(device.name.split()), default=None)


@dataclass(frozen=True)
class DeviceVariant:
    """A device that was built or run otherwise than its data sheet says: other memory, less power."""

    name: str
    device: Accelerator
    power_share: float


TORCHTITAN_H100 = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, section Hardware"
DEVICE_VARIANTS: tuple[DeviceVariant, ...] = (
    DeviceVariant("H100 96GB 500W", replace(
        accelerator("H100"), memory=Fact(96, "GB", TORCHTITAN_H100, "2024"),
        memory_bandwidth=Fact(2400, "GB/s", TORCHTITAN_H100, "2024"),
        power=Fact(500, "W", TORCHTITAN_H100, "2024")), 500 / 700),
)

DATA_RECEIPTS = "published price lists, gathered by the data set 109-gpu-pricing"


@dataclass(frozen=True)
class Price:
    """What somebody asks for one device for an hour (`what` is then "an hour"), or for owning a thing."""

    device: str
    seller: str
    what: str
    price: Fact


def hourly(device: str, **sellers: float) -> tuple[Price, ...]:
    """Prices of an hour of `device`, in USD, one for each seller; `_` in a seller's name is a space."""
    return tuple(Price(device, seller.replace("_", " "), "an hour",
                       Fact(usd, "USD/h", DATA_RECEIPTS, "2026-11", unverified=True))
                 for seller, usd in sellers.items())


CNBC = "CNBC, interview with Jensen Huang: what a Blackwell GPU is expected to cost"

# The most volatile numbers of the course: a list price of one day. Look up your own before you decide anything.
PRICES: tuple[Price, ...] = (
    *hourly("A100 40GB", Lambda=1.99, AWS_p4d=2.74),
    *hourly("A100", RunPod=1.39, Lambda=2.79, AWS_p4de=3.43),
    *hourly("H100", RunPod_community=2.69, RunPod_secure=3.99, Lambda_8x=3.99, CoreWeave=6.16, AWS_p5=6.88,
            Azure=12.29),
    *hourly("B200", Lambda=6.69, CoreWeave=8.60),
    Price("A100", "NVIDIA", "DGX A100, 8 GPUs, to own",
          Fact(200_000, "USD", "VideoCardz, NVIDIA DGX A100 with eight Ampere Tesla A100 detailed", "2020-05")),
    Price("A100", "a shop", "one card, to own",
          Fact(9_900, "USD", "AssemblyAI, How to train large deep learning models as a startup", "2021")),
    Price("H100", "the market", "one card, to own",
          Fact(40_000, "USD", "The Motley Fool: what a unit cost at most in its first year", "2024-11")),
    Price("B200", "NVIDIA, at least", "one card, to own", Fact(30_000, "USD", CNBC, "2024-10")),
    Price("B200", "NVIDIA, at most", "one card, to own", Fact(40_000, "USD", CNBC, "2024-10")),
    Price("H800", "DeepSeek's own assumption", "an hour",
          Fact(2.0, "USD/h", "DeepSeek-AI, DeepSeek-V3 technical report, table 1", "2024-12")),
)

# EIA: U.S. Energy Information Administration
ELECTRICITY = Fact(0.0806, "USD/kWh", "EIA, Electric Power Monthly: average for industry, United States, 2023",
                   "2024-03")
# PUE: all that a data centre draws, over what its computers draw
PUE_AVERAGE = Fact(1.58, "ratio", "Uptime Institute, Global Data Center Survey", "2023")
HOUSEHOLD = Fact(10_715, "kWh/year", "EIA: average of a residential customer, United States, 2020", "2021-10")


def hourly_prices(device: str) -> tuple[Price, ...]:
    """What an hour of `device` costs, cheapest first; empty where we know no price."""
    found = (price for price in PRICES if price.device == device and price.what == "an hour")
    return tuple(sorted(found, key=lambda price: price.price.value))
