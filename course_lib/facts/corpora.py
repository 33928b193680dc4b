"""Texts that models were trained on, and the shelves they stand on: sizes, and how fast they can be read."""

from dataclasses import dataclass

from course_lib.facts.fact import Fact


@dataclass(frozen=True)
class Corpus:
    """`size` in GB as it is stored; `tokens` where its makers counted them."""

    name: str
    size: Fact
    tokens: Fact | None
    note: str

    @property
    def num_bytes(self) -> float:
        """Its size in bytes."""
        return self.size.value * 1e9


def gigabytes(value: float, source: str, date: str) -> Fact:
    """A size in GB as a Fact."""
    return Fact(value, "GB", source, date)


def tokens(value: float, source: str, date: str) -> Fact:
    """A count of tokens as a Fact."""
    return Fact(value, "tokens", source, date)


BROWN = ("Brown et al., Language Models are Few-Shot Learners, section 2.2", "2020")
PILE = ("Gao et al., The Pile", "2020")
C4 = ("Raffel et al., Exploring the Limits of Transfer Learning (T5)", "2019")
C4_TOKENS = ("Dodge et al., Documenting Large Webtext Corpora", "2021")
LAION = ("Schuhmann et al., LAION-5B, announcement", "2022-03")
FINEWEB = ("Penedo et al., FineWeb: decanting the web for the finest text data at scale", "2024")

CORPORA: tuple[Corpus, ...] = (
    Corpus("WebText (GPT-2)", gigabytes(40, "Radford et al., GPT-2", "2019"), None, "pages that Reddit linked to"),
    Corpus("GPT-3's crawl, raw", gigabytes(45_000, *BROWN), None,
           "41 months of Common Crawl, compressed, before filtering"),
    Corpus("GPT-3's crawl, filtered", gigabytes(570, *BROWN), tokens(410e9, *BROWN), "1.3 % of the bytes survived"),
    Corpus("C4", gigabytes(750, *C4), Fact(156e9, "tokens", *C4_TOKENS, unverified=True),
           "one month of Common Crawl, cleaned"),
    Corpus("The Pile", gigabytes(886, *PILE), None, "825 GiB from 22 sources"),
    Corpus("LAION-5B", gigabytes(240_000, *LAION), None, "5.85 billion pairs of image and text, at 384 pixels"),
    Corpus("FineWeb", gigabytes(44_000, *FINEWEB), tokens(15e12, *FINEWEB),
           "96 snapshots of Common Crawl, deduplicated"),
)


@dataclass(frozen=True)
class Storage:
    """A shelf: how fast one reader (or, where the note says so, a whole system) reads. `latency`: until the first byte,
    None where we know no published figure."""

    name: str
    bandwidth: Fact  # GB/s
    latency: Fact | None  # s
    note: str

    @property
    def bytes_per_s(self) -> float:
        """What one reader gets."""
        return self.bandwidth.value * 1e9


EXOS = ("Seagate, Exos X18 data sheet: 7,200 turns a minute", "2020")
PM9A3 = ("Samsung, announcement of the PM9A3", "2020-05")
DEAN = ("Dean and Norvig, Latency Numbers Every Programmer Should Know: 4 KB at random, a drive of 1 GB/s", "2012")
ESHELMAN = ("Eshelman, HPC-oriented Latency Numbers Every Programmer Should Know: Xeon E5-2690v4", "2025-08")
EFS = ("Amazon, EFS user guide, performance specifications: one reader of a regional, elastic file system", "2026")
FSX = ("Amazon, FSx for Lustre user guide, performance: 57,760 GiB at 200 MB/s per TiB", "2020")
TECTONIC = ("Llama team, The Llama 3 Herd of Models, section 3.3.1", "2024")
S3 = ("Amazon, S3 user guide: best practices design patterns", "2024")

STORAGE: tuple[Storage, ...] = (
    Storage("hard disk", Fact(0.27, "GB/s", *EXOS), Fact(4.16e-3, "s", *EXOS),
            "one disk, in sequence; half a turn to wait"),
    Storage("NVMe SSD", Fact(6.5, "GB/s", *PM9A3), Fact(150e-6, "s", *DEAN),
            "one drive, PCIe 4.0 x4, in sequence"),
    Storage("host memory", Fact(204.8, "GB/s", "AMD, EPYC 7002 data sheet: 8 channels of DDR4-3200", "2019"),
            Fact(75e-9, "s", *ESHELMAN), "one socket"),
    Storage("NFS", Fact(1.573, "GB/s", *EFS), Fact(1e-3, "s", *EFS), "one reader of Amazon's EFS"),
    Storage("Lustre", Fact(11.28, "GB/s", *FSX), Fact(1e-3, "s", *FSX), "62 TB of Amazon's FSx; a millisecond at most"),
    Storage("cluster file system", Fact(2_000, "GB/s", *TECTONIC), None,
            "Meta's Tectonic, all of it: 240 PB on 7,500 servers"),
    Storage("object store", Fact(0.0875, "GB/s", *S3, unverified=True), Fact(0.15, "s", *S3),
            "one request to S3; hundreds at a time make it fast"),
)


@dataclass(frozen=True)
class MemoryLevel:
    """One level of a device's memory: its size on the whole device, and how many cycles a load takes."""

    name: str
    size: Fact  # bytes
    latency: Fact | None  # cycles


A100_PAPER = ("NVIDIA, A100 Tensor Core GPU architecture whitepaper", "2020")
CHASED = ("Ernst, gpu-benches, gpu-latency/a100_80.txt: a chain of loads, each naming the next", "2023-07")
A100_CLOCK = Fact(1410, "MHz", *CHASED)
# Of an A100 with its 108 multiprocessors (SM), outwards. Each step out is larger and slower. Half of the L2 is far
# away, at up to 420 cycles. Luo et al. (2024, arXiv 2402.13499) have 37.9, 261.5 and 466.3 on a PCIe card.
A100_MEMORY: tuple[MemoryLevel, ...] = (
    MemoryLevel("registers", Fact(108 * 256 * 1024, "bytes", *A100_PAPER), None),
    MemoryLevel("L1 and shared memory", Fact(108 * 192 * 1024, "bytes", *A100_PAPER), Fact(36, "cycles", *CHASED)),
    MemoryLevel("L2", Fact(40 * 1024**2, "bytes", *A100_PAPER), Fact(211, "cycles", *CHASED)),
    MemoryLevel("HBM", Fact(80e9, "bytes", "NVIDIA, A100 data sheet", "2021"), Fact(570, "cycles", *CHASED)),
)
