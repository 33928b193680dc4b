"""Loss scaling for 16-bit floats: gradients too small for fp16 are multiplied into its range, and divided back.

fp16 ends at 6e-8 below and 65504 above. The loss is multiplied by a large power of two, so are all gradients, and the
optimiser gets them divided again. Where one has become infinite the step is left out and the factor halved; after many
good steps it is doubled. All ranks must leave out the same steps, so they ask one another.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import member
from course_lib.runtime import device
from course_lib.zero.optimizer import ZeroOptimizer


class ShardedGradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler where each rank sees only shards of the gradients: what one finds infinite, all skip.

    For a ZeroOptimizer, and for any optimiser of a FullyShardedDataParallel's parameters. Use it as torch's own.
    `group` is theirs (None: the world); `options` are torch's (init_scale=2.0**16, growth_interval=2000, ...).
    """

    def __init__(self, group: dist.ProcessGroup | None = None, **options: Any) -> None:
        self.member = member(group)
        options.setdefault("device", device().type)
        super().__init__(**options)

    def _unscale_grads_(self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor,
                        allow_fp16: bool) -> dict[torch.device, Tensor]:
        if isinstance(optimizer, ZeroOptimizer):
            optimizer.average_gradients()
            optimizer = optimizer.inner
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16=True)
        anywhere = found_inf.clone()
        for on_device in found.values():
            anywhere = torch.maximum(anywhere, on_device.to(anywhere.device))
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self.member.group)
        return {anywhere.device: anywhere}
