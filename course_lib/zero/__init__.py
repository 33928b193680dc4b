"""Chapter 6: ZeRO and fully sharded data parallelism. From "every device holds everything" to one N-th each.

    stage1.py       stage 1: gradients stay whole until the step, which averages a block of them
    stage2.py       stage 2: each bucket of gradients is averaged and freed while backward runs
    flat.py         a bucket of parameters of which each rank owns one block
    optimizer.py    ZeroOptimizer: a step with either stage, on this rank's blocks
    fsdp.py         FullyShardedDataParallel: stage 3, and units.py, what is gathered and freed together
    partition.py    which parameters make a unit; replicated.py, those in none
    scaler.py       loss scaling for fp16, over shards
    host.py         what lies in the host's memory
    consolidate.py  a sharded optimiser's state in torch's own form, and back; full_state.py, the same for stage 3
    watch.py        what a step needs in one process, from which costs.peak counts the peak of each stage
    deepspeed.py    the same training by DeepSpeed, an optional extra
    checks.py       what cannot work, said before it goes wrong

`group=None` is the world, and every process group of torch.distributed will do. What each device holds and sends is
counted in course_lib.costs: memory.py and sharding.py, and peak.py for the most that a step takes.
"""

from course_lib.costs.memory import device_memory, table_1
from course_lib.costs.peak import step_peak
from course_lib.costs.sharding import held_bytes, sent_bytes
from course_lib.facts import PAPER_TABLE_1
from course_lib.zero.fsdp import FullyShardedDataParallel
from course_lib.zero.optimizer import ZeroOptimizer
from course_lib.zero.scaler import ShardedGradScaler
from course_lib.zero.watch import watch

__all__ = [
    "PAPER_TABLE_1",
    "FullyShardedDataParallel",
    "ShardedGradScaler",
    "ZeroOptimizer",
    "device_memory",
    "held_bytes",
    "sent_bytes",
    "step_peak",
    "table_1",
    "watch",
]
