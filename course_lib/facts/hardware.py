"""What one device can do: operations a second, memory, watts; and what it costs to have one.

Peaks are DENSE. Data sheets since the A100 print twice as much "with sparsity", which asks for weights of which half
are zero in a fixed pattern: training has none. A peak is what the arithmetic units could do if they never waited. GB
are 1e9 bytes, as the makers print them.
"""

from dataclasses import dataclass, replace

from course_lib.facts.fact import Fact

V100_SHEET = "NVIDIA, Tesla V100 data sheet (SXM2, 32 GB)"
A100_SHEET = "NVIDIA, A100 data sheet (SXM4, 80 GB), without sparsity"
A100_40_SHEET = "NVIDIA, A100 Tensor Core GPU architecture whitepaper (40 GB)"
H100_SHEET = "NVIDIA, H100 data sheet (SXM5), halved where it says with sparsity"
H200_SHEET = "NVIDIA, H200 data sheet (SXM5), halved where it says with sparsity"
B200_SHEET = "NVIDIA, Blackwell brief (HGX B200) and DGX B200 data sheet, halved where it says with sparsity"
TPU_V4 = "Google Cloud, TPU v4 documentation; Jouppi et al. 2023, TPU v4"
SCALING_BOOK = "Austin et al., How to Scale Your Model, chapter TPUs"
DATA_RECEIPTS = "published price lists, gathered by the data set 109-gpu-pricing"


@dataclass(frozen=True)
class Accelerator:
    """`peaks` by number format, in TFLOP/s (TOP/s for int8). `power`: of the device alone, None where it is not
    published.

    `links`: names in `facts.LINKS`: inside a node, and what each device usually has between nodes.
    """

    name: str
    kind: str  # "GPU" or "TPU"
    year: int
    peaks: dict[str, Fact]
    memory: Fact  # GB
    memory_bandwidth: Fact  # GB/s
    power: Fact | None  # W
    links: tuple[str, ...] = ()

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
    def memory_bytes(self) -> float:
        return self.memory.value * 1e9

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_bandwidth.value * 1e9


def peaks(source: str, date: str, **tflops: float) -> dict[str, Fact]:
    return {name: Fact(value, "TOP/s" if name == "int8" else "TFLOP/s", source, date) for name, value in tflops.items()}


def gpu(name: str, year: int, sheet: str, date: str, memory_gb: float, gb_per_s: float, watts: float,
        links: tuple[str, ...], **tflops: float) -> Accelerator:
    return Accelerator(name, "GPU", year, peaks(sheet, date, **tflops), Fact(memory_gb, "GB", sheet, date),
                       Fact(gb_per_s, "GB/s", sheet, date), Fact(watts, "W", sheet, date), links)


def tpu(name: str, year: int, bf16: float, memory_gb: float, gb_per_s: float, power: Fact | None,
        **more: float) -> Accelerator:
    date = "2025"
    return Accelerator(name, "TPU", year, peaks(SCALING_BOOK, date, bf16=bf16, **more),
                       Fact(memory_gb, "GB", SCALING_BOOK, date), Fact(gb_per_s, "GB/s", SCALING_BOOK, date), power,
                       (f"{name} ICI",))


ACCELERATORS: tuple[Accelerator, ...] = (
    gpu("V100", 2017, V100_SHEET, "2018", 32, 900, 300, ("NVLink 2 (V100)", "InfiniBand EDR"),
        fp64=7.8, fp32=15.7, fp16=125),
    gpu("A100 40GB", 2020, A100_40_SHEET, "2020", 40, 1555, 400, ("NVLink 3 (A100)", "InfiniBand HDR"),
        fp64=9.7, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624),
    gpu("A100", 2020, A100_SHEET, "2021", 80, 2039, 400, ("NVLink 3 (A100)", "InfiniBand HDR"),
        fp64=9.7, fp32=19.5, tf32=156, fp16=312, bf16=312, int8=624),
    gpu("H100", 2022, H100_SHEET, "2023", 80, 3350, 700, ("NVLink 4 (H100)", "InfiniBand NDR"),
        fp64=34, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("H200", 2023, H200_SHEET, "2024", 141, 4800, 700, ("NVLink 4 (H100)", "InfiniBand NDR"),
        fp64=34, fp32=67, tf32=494.5, fp16=989.5, bf16=989.5, fp8=1979, int8=1979),
    gpu("B200", 2024, B200_SHEET, "2024", 180, 8000, 1000, ("NVLink 5 (B200)", "InfiniBand NDR"),
        fp64=40, fp32=80, tf32=1125, fp16=2250, bf16=2250, fp8=4500, fp4=9000, int8=4500),
    tpu("TPU v4", 2020, 275, 32, 1200, Fact(192, "W", TPU_V4 + ", the most measured", "2023"), int8=275),
    tpu("TPU v5e", 2023, 197, 16, 810, None, int8=394),
    tpu("TPU v5p", 2023, 459, 96, 2800, None, int8=918),
)


@dataclass(frozen=True)
class MeasuredMatmul:
    """The most that a large matrix product was seen to reach, of the peak on the data sheet."""

    device: str
    achieved: Fact


MEASURED_MATMUL: tuple[MeasuredMatmul, ...] = tuple(
    MeasuredMatmul(device, Fact(tflops, "TFLOP/s", "Bekman, Machine Learning Engineering, MAMF table, bf16", "2025"))
    for device, tflops in (("A100", 271.2), ("H100", 794.5), ("B200", 1745)))


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


@dataclass(frozen=True)
class Price:
    """What somebody asks for one device for an hour (`what` is then "an hour"), or for owning a thing."""

    device: str
    seller: str
    what: str
    price: Fact


def hourly(device: str, **sellers: float) -> tuple[Price, ...]:
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
          Fact(199_000, "USD", "NVIDIA, announcement of the DGX A100, quoted by the press as 200,000", "2020-05",
               unverified=True)),
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
PUE_BEST = Fact(1.10, "ratio", "Google, data centre efficiency: fleet average, second quarter of 2021", "2022-04")
HOUSEHOLD = Fact(10_715, "kWh/year", "EIA: average of a residential customer, United States, 2020", "2021-10")


def accelerator(name: str) -> Accelerator:
    """The one of this name. ValueError, with all names, where there is none."""
    for device in ACCELERATORS:
        if device.name == name:
            return device
    raise ValueError(f"no accelerator is called {name!r}: expected one of {', '.join(a.name for a in ACCELERATORS)}")


def hourly_prices(device: str) -> tuple[Price, ...]:
    """What an hour of `device` costs, cheapest first; empty where we know no price."""
    found = (price for price in PRICES if price.device == device and price.what == "an hour")
    return tuple(sorted(found, key=lambda price: price.price.value))


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
