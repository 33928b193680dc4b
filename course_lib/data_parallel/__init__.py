"""Chapter 3: data parallelism. Every rank holds the whole model and learns from its own part of the batch.

    ddp.py               DistributedDataParallel: gradients averaged in buckets, while backward still runs
"""

from course_lib.data_parallel.ddp import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
