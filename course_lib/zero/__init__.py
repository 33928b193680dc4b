"""Chapter 6: ZeRO and fully sharded data parallelism. From "every device holds everything" to one N-th each.

    optimizer.py    ZeroOptimizer: stages 1 and 2 on a page, reduce, step, gather; loss scaling for fp16, over shards
    flat.py         a bucket of parameters of which each rank owns one block, and what cannot be cut so
    fsdp.py         FullyShardedDataParallel: stage 3, when each unit is gathered and reduced
    units.py        a unit: what is gathered and freed together, which parameters make one, and what a step of all needs
    consolidate.py  what the ranks hold in torch's own form, as if nothing were sharded, and back
    deepspeed.py    the same training by DeepSpeed, an optional extra

The messages are those of groups/exchange.py, the halves of an all-reduce. `group=None` is the world, and every process
group of torch.distributed will do. What each device holds and sends is counted in course_lib.costs: memory.py and
sharding.py, which also has the most that a step takes.
"""

from course_lib.costs.memory import device_memory, table_1
from course_lib.costs.sharding import held_bytes, sent_bytes, step_peak
from course_lib.facts import PAPER_TABLE_1
from course_lib.lazy import load_on_use
from course_lib.zero.fsdp import FullyShardedDataParallel
from course_lib.zero.optimizer import ShardedGradScaler, ZeroOptimizer
from course_lib.zero.units import watch

load_on_use(__name__)
