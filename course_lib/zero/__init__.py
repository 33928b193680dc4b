"""Chapter 6: ZeRO and fully sharded data parallelism. From "every device holds everything" to one N-th each.

    optimizer.py    ZeroOptimizer: stages 1 and 2, and flat.py, a bucket of parameters of which each rank owns one block
    fsdp.py         FullyShardedDataParallel: stage 3, and units.py, what is gathered and freed together
    partition.py    which parameters make a unit; replicated.py, those in none
    scaler.py       loss scaling for fp16, over shards
    norms.py        the norm of a gradient in pieces
    host.py         what lies in the host's memory
    consolidate.py  a sharded optimiser's state in torch's own form, and back; full_state.py, the same for stage 3
    memory.py       bytes of each device, in closed form; peak.py, the most that a step takes
    deepspeed.py    the same training by DeepSpeed, an optional extra
    checks.py       what cannot work, said before it goes wrong

`group=None` is the world, and every process group of torch.distributed will do.
"""

from course_lib.zero.fsdp import FullyShardedDataParallel
from course_lib.zero.optimizer import ZeroOptimizer
from course_lib.zero.scaler import ShardedGradScaler

__all__ = ["FullyShardedDataParallel", "ShardedGradScaler", "ZeroOptimizer"]
