"""Published numbers, each with its unit, its source and its date. Nothing here is computed, and nothing imports torch.

    fact.py       what a number needs to be believed
    hardware.py   devices: FLOP/s by number format, memory, power; servers; what they and electricity cost
    links.py      what connects devices, and how fast collectives were measured on real clusters
    corpora.py    texts and their sizes; storage and the levels of a device's memory
    shape.py      the sizes of a transformer; layers with experts, and what is reported of routing
    models.py     models that were trained: parameters, tokens, shapes; training runs that were reported
    published.py  what papers report of parallel training; runs with all that a step's time depends on (published.json)
    measured.py   what the course measured on a GPU itself (on_h100.json)
    claims.py     what is often said and wrong, beside what is right

ACCELERATORS, LINKS and MODELS are the course's only lists of devices, wires and models.
"""

from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "claims": ("CLAIMS", "Claim", "claim"),
    "corpora": ("A100_CLOCK", "A100_MEMORY", "CORPORA", "STORAGE", "Corpus", "MemoryLevel", "Storage"),
    "fact": ("Fact", "find", "nearest_first"),
    "hardware": (
        "ACCELERATORS", "DEVICE_VARIANTS", "ELECTRICITY", "FRONTIER", "HOUSEHOLD", "MEASURED_MATMUL", "PRICES",
        "PUE_AVERAGE", "SYSTEMS", "Accelerator", "DeviceVariant", "Price", "System", "accelerator", "hourly_prices",
        "reported_as"),
    "links": (
        "CUT_MLP_TIMES", "LINKS", "LLAMA_3_OVERSUBSCRIPTION", "LLAMA_3_POD", "MEASURED_COLLECTIVES", "RING_ON_NVLINK4",
        "SHARED_CLUSTER", "STEP_LATENCY", "TREE_STEP_LATENCY", "TWO_HOST_STEP_TIMES", "Interconnect",
        "MeasuredCollective", "RecordedTimes", "interconnect", "measured_collectives"),
    "measured": ("MeasuredTable", "gpu_day", "measured_on_gpu"),
    "models": (
        "DEEPSEEK_V3_GPU_HOURS", "GPT3_COSTS", "GPT3_ENERGY", "GPT3_ON_ONE_V100", "GPT3_POWER", "GPT3_PUE", "MODELS",
        "PUBLISHED_FLOPS", "TRAINING_REPORTS", "Model", "ReportedRun", "model"),
    "published": (
        "BUBBLE_RATES", "LLAMA_3_CAUSES", "LLAMA_3_EFFECTIVE", "LLAMA_3_GPU_HOURS", "LLAMA_3_GPUS", "LLAMA_3_SNAPSHOT",
        "LLAMA_3_UNEXPECTED", "LONG_ROWS", "MEASURED_THROUGHPUT", "PAPER_DEVICES", "PAPER_MODELS", "PAPER_TABLE_1",
        "PUBLISHED_T", "SC21_LAYOUTS", "SPLIT_RUNS", "BubbleRates", "MeasuredThroughput", "PublishedLayout", "SplitRun",
        "published_rows", "published_table"),
    "shape": ("EXPERT_LAYERS", "EXPERT_REPORTS", "ExpertLayer", "LatentAttention", "Shape", "expert_layer"),
})
