"""Local SGD: steps without communication, and an average of the parameters now and then.

    H = sync_every      M bytes of parameters      2 (n-1)/n M / H bytes sent a step, on average

For SGD, with or without momentum, H = 1 is data parallelism: the average of n steps is the step with the average
gradient. For Adam it is not, since each rank divides by its own second moments. With a larger H the ranks drift apart
between two averages, and a straggler is waited for once in H steps only.

Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Lin et al. 2020, "Don't Use Large Mini-Batches,
Use Local SGD".
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.groups.membership import member
from course_lib.groups.packing import add_up, broadcast


class LocalSGD:
    """Use it like `optimizer`, which trains `module` on this rank: after every `sync_every`-th step() all are averaged.

    Rank 0's parameters and buffers are broadcast at the start. Averaged are the parameters that require gradients, and
    the buffers of floating point; the optimizer's state stays each rank's own. Call synchronize() after the last step.
    All ranks take as many steps. ValueError for a sync_every below 1.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, sync_every: int,
                 group: dist.ProcessGroup | None = None) -> None:
        if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
            raise ValueError(f"sync_every={sync_every!r}: expected a number of steps, at least 1")
        self.module, self.optimizer, self.sync_every, self.member = module, optimizer, sync_every, member(group)
        self.num_steps = 0  # since the last average
        broadcast([*module.parameters(), *module.buffers()], self.member)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's zero_grad."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the optimizer, and an average where it is time. Returns what the optimizer returned."""
        result = self.optimizer.step(closure)
        self.num_steps += 1
        if self.num_steps == self.sync_every:
            self.synchronize()
        return result

    def synchronize(self) -> None:
        """Average now, unless that was just done: afterwards all ranks hold the same."""
        if self.num_steps:
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            # Counters, such as a batch norm's number of batches, are equal already and have no mean.
            buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]
            for tensors in (trained, buffers):
                add_up(tensors, self.member, divide_by=self.member.n)
        self.num_steps = 0
