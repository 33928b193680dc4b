"""Published numbers, each with its unit, its source and its date. Nothing here is computed, and nothing imports torch.

    fact.py        what a number needs to be believed
    links.py       what connects devices: NVLink, PCIe, InfiniBand, Ethernet, the links between TPUs
    all_reduce.py  how fast all-reduce was measured on real clusters
"""

from course_lib.facts.all_reduce import MEASURED_ALL_REDUCE, MeasuredAllReduce
from course_lib.facts.fact import Fact
from course_lib.facts.links import LINKS, NCCL_STEP_LATENCY, Interconnect, interconnect

__all__ = [
    "LINKS",
    "MEASURED_ALL_REDUCE",
    "NCCL_STEP_LATENCY",
    "Fact",
    "Interconnect",
    "MeasuredAllReduce",
    "interconnect",
]
