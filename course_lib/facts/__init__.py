"""Published numbers, each with its unit, its source and its date. Nothing here is computed, and nothing imports torch.

    fact.py        what a number needs to be believed
    hardware.py    devices: FLOP/s by number format, memory, power; servers
    prices.py      what devices and electricity cost
    shape.py       the sizes of a transformer
    models.py      models that were trained: parameters, tokens, shapes; training runs that were reported
    corpora.py     texts and their sizes; storage and the levels of a device's memory
    links.py       what connects devices: NVLink, PCIe, InfiniBand, Ethernet, the links between TPUs
    collectives.py how fast collectives were measured on real clusters
    throughput.py  how fast published runs of data parallelism were as they took more devices
    split_runs.py  how fast published runs of tensor parallelism were, how far they cut; Megatron's layouts
    pipeline_bubbles.py  how long pipelines were reported to wait
    zero_memory.py  what ZeRO saves, as its paper prints it
    published.py   published training runs with all that a step's time depends on; published.json holds them
    long_rows.py   what sequence and context parallelism gained, as papers report it
    expert_models.py  layers with experts: their sizes, and what is reported of routing
    failures.py    how often a large run broke off, and why
    two_hosts.py   times over a slow cable between two hosts, recorded on the authors' machine
    claims.py      what is often said and wrong, beside what is right
"""

from course_lib.facts.claims import CLAIMS, Claim, claim
from course_lib.facts.corpora import A100_CLOCK, A100_MEMORY, CORPORA, STORAGE, Corpus, MemoryLevel, Storage
from course_lib.facts.fact import Fact, find, nearest_first
from course_lib.facts.hardware import (
    ACCELERATORS,
    DEVICE_VARIANTS,
    ELECTRICITY,
    FRONTIER,
    HOUSEHOLD,
    MEASURED_MATMUL,
    PRICES,
    PUE_AVERAGE,
    SYSTEMS,
    Accelerator,
    DeviceVariant,
    Price,
    System,
    accelerator,
    hourly_prices,
    reported_as,
)
from course_lib.facts.links import (
    CUT_MLP_TIMES,
    LINKS,
    LLAMA_3_OVERSUBSCRIPTION,
    LLAMA_3_POD,
    MEASURED_COLLECTIVES,
    RING_ON_NVLINK4,
    SHARED_CLUSTER,
    STEP_LATENCY,
    TREE_STEP_LATENCY,
    TWO_HOST_STEP_TIMES,
    Interconnect,
    MeasuredCollective,
    RecordedTimes,
    interconnect,
    measured_collectives,
)
from course_lib.facts.models import (
    DEEPSEEK_V3_GPU_HOURS,
    GPT3_COSTS,
    GPT3_ENERGY,
    GPT3_ON_ONE_V100,
    GPT3_POWER,
    GPT3_PUE,
    MODELS,
    PUBLISHED_FLOPS,
    TRAINING_REPORTS,
    Model,
    ReportedRun,
    model,
)
from course_lib.facts.published import (
    BUBBLE_RATES,
    LLAMA_3_CAUSES,
    LLAMA_3_EFFECTIVE,
    LLAMA_3_GPU_HOURS,
    LLAMA_3_GPUS,
    LLAMA_3_SNAPSHOT,
    LLAMA_3_UNEXPECTED,
    LONG_ROWS,
    MEASURED_THROUGHPUT,
    PAPER_DEVICES,
    PAPER_MODELS,
    PAPER_TABLE_1,
    PUBLISHED_T,
    SC21_LAYOUTS,
    SPLIT_RUNS,
    BubbleRates,
    MeasuredThroughput,
    PublishedLayout,
    SplitRun,
    published_rows,
    published_table,
)
from course_lib.facts.shape import EXPERT_LAYERS, EXPERT_REPORTS, ExpertLayer, LatentAttention, Shape, expert_layer

__all__ = [
    "A100_CLOCK",
    "A100_MEMORY",
    "ACCELERATORS",
    "BUBBLE_RATES",
    "CLAIMS",
    "CORPORA",
    "CUT_MLP_TIMES",
    "DEEPSEEK_V3_GPU_HOURS",
    "DEVICE_VARIANTS",
    "ELECTRICITY",
    "EXPERT_LAYERS",
    "EXPERT_REPORTS",
    "FRONTIER",
    "GPT3_COSTS",
    "GPT3_ENERGY",
    "GPT3_ON_ONE_V100",
    "GPT3_POWER",
    "GPT3_PUE",
    "HOUSEHOLD",
    "LINKS",
    "LLAMA_3_CAUSES",
    "LLAMA_3_EFFECTIVE",
    "LLAMA_3_GPU_HOURS",
    "LLAMA_3_GPUS",
    "LLAMA_3_OVERSUBSCRIPTION",
    "LLAMA_3_POD",
    "LLAMA_3_SNAPSHOT",
    "LLAMA_3_UNEXPECTED",
    "LONG_ROWS",
    "MEASURED_COLLECTIVES",
    "MEASURED_MATMUL",
    "MEASURED_THROUGHPUT",
    "MODELS",
    "PAPER_DEVICES",
    "PAPER_MODELS",
    "PAPER_TABLE_1",
    "PRICES",
    "PUBLISHED_FLOPS",
    "PUBLISHED_T",
    "PUE_AVERAGE",
    "RING_ON_NVLINK4",
    "SC21_LAYOUTS",
    "SHARED_CLUSTER",
    "SPLIT_RUNS",
    "STEP_LATENCY",
    "STORAGE",
    "SYSTEMS",
    "TRAINING_REPORTS",
    "TREE_STEP_LATENCY",
    "TWO_HOST_STEP_TIMES",
    "Accelerator",
    "BubbleRates",
    "Claim",
    "Corpus",
    "DeviceVariant",
    "ExpertLayer",
    "Fact",
    "Interconnect",
    "MeasuredCollective",
    "MeasuredThroughput",
    "MemoryLevel",
    "LatentAttention",
    "Model",
    "Price",
    "PublishedLayout",
    "RecordedTimes",
    "Shape",
    "SplitRun",
    "Storage",
    "System",
    "ReportedRun",
    "accelerator",
    "claim",
    "expert_layer",
    "find",
    "hourly_prices",
    "interconnect",
    "measured_collectives",
    "model",
    "nearest_first",
    "published_rows",
    "published_table",
    "reported_as",
]
