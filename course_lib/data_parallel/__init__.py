"""Chapter 3: data parallelism. Every rank holds the whole model and learns from its own part of the batch.

    averaging.py     after backward: one all-reduce a parameter, then one for all; buckets; the mean of unequal batches
    ddp.py           DistributedDataParallel: gradients averaged in buckets, while backward still runs
    hooks.py         16 bits a number, only the largest numbers with error feedback, or a matrix as two thin ones
    asynchronous.py  local SGD, an average now and then; a parameter server, stale gradients within a bound
    sampler.py       which rank reads which samples

`group=None` is the world, and every process group of torch.distributed will do.
"""

from course_lib.data_parallel.asynchronous import AsyncParameterServer, LocalSGD, Update
from course_lib.data_parallel.averaging import Bucket, average_each, average_flat, loss_weight
from course_lib.data_parallel.ddp import DistributedDataParallel
from course_lib.data_parallel.hooks import HOOKS, all_reduce_hook, bf16_hook, fp16_hook, power_sgd_hook, top_k_hook
from course_lib.data_parallel.sampler import ShardedSampler
from course_lib.lazy import load_on_use

load_on_use(__name__)
