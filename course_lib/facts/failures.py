"""How often large runs were reported to break off: the pre-training of Llama 3 405B."""

from course_lib.facts.fact import Fact

SECTION = ("Llama team, The Llama 3 Herd of Models, section 3.3.4", "2024")
TABLE = ("Llama team, The Llama 3 Herd of Models, table 5", "2024")

LLAMA_3_GPUS = Fact(16384, "H100", *SECTION)
LLAMA_3_SNAPSHOT = Fact(54, "days", *SECTION)
LLAMA_3_UNEXPECTED = Fact(419, "interruptions", *SECTION)
LLAMA_3_EFFECTIVE = Fact(90, "% of the time, more than", *SECTION)

LLAMA_3_GPU_HOURS = Fact(30.84e6, "H100 hours", "Meta, Llama 3.1 model card, Training Energy Use", "2024-07")

LLAMA_3_CAUSES: dict[str, Fact] = {cause: Fact(count, "interruptions", *TABLE) for cause, count in {
    "GPU: faulty, NVLink too": 148,
    "GPU: HBM3 memory": 72,
    "software": 54,
    "network: switch or cable": 35,
    "maintenance of a host, unplanned": 32,
    "GPU: SRAM": 19,
    "GPU: system processor": 17,
    "host: network interface": 7,
    "NCCL watchdog, cause unknown": 7,
    "GPU: silent data corruption": 6,
    "GPU: thermal interface or sensor": 6,
    "host: SSD": 3,
    "host: power supply": 3,
    "host: chassis": 2,
    "host: IO board": 2,
    "a service that the run needs": 2,
    "host: CPU": 2,
    "host: memory": 2,
}.items()}
"""Table 5, all 18 rows: their counts add up to the 419."""
