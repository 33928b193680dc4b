"""Random numbers: where all ranks hold the same tensor they must draw the same mask, where each holds a part, its own.

The ranks' streams go on alike, as those of one process would: replicated tensors need nothing else. Where a tensor is
in parts, each rank draws one number from the common stream, the same on all, and seeds a stream of its own with it and
with its place; afterwards the common stream goes on. So everything still follows from the common stream, and whoever
restores that, as torch.utils.checkpoint does before it computes again, gets the same masks.

Megatron-LM has a second stream instead (`CudaRNGStatesTracker`), which a recomputation must restore, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.membership import Group, Member, member
from course_lib.runtime import device


@contextmanager
def own_stream(group: Group = None) -> Iterator[None]:
    """Inside, this rank draws random numbers that no other rank of the group draws."""
    me, here = member(group), device()
    common = int(torch.randint(2**53, (), device="cpu"))  # the same on all ranks
    others = [] if here.type == "cpu" else [here]
    with torch.random.fork_rng(others, device_type=here.type if others else "cpu"):
        # From the common stream and the place, so that a recomputation which restores that stream gets this mask again.
        seed(common + me.r, here)
        yield


def seed(number: int, here: torch.device) -> None:
    """Seed the generators of the CPU and of `here`."""
    torch.default_generator.manual_seed(number)
    if here.type != "cpu":
        torch.get_device_module(here).manual_seed(number)


def agree_on_random_numbers(group: Group = None) -> None:
    """From now on all ranks draw what place 0 draws. Collective."""
    me, here = member(group), device()
    _follow(torch.get_rng_state(), torch.set_rng_state, me)
    if here.type != "cpu":
        module = torch.get_device_module(here)
        _follow(module.get_rng_state(), module.set_rng_state, me)


def _follow(state: Tensor, set_state: Callable[[Tensor], None], me: Member) -> None:
    message = state.to(me.wire(state.device))
    dist.broadcast(message, group=me.group, group_src=0)
    if me.r > 0:
        set_state(message.to(state.device))


class OwnAttention:
    """`attend(q, k, v, dropout_p)` on this rank's heads, whose dropout mask is no other rank's."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor, float], Tensor], group: Group = None) -> None:
        self.attend, self.member = attend, member(group)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0) -> Tensor:
        if not dropout_p:  # nothing is drawn, so the common stream stays where it is
            return self.attend(q, k, v, dropout_p)
        with own_stream(self.member):
            return self.attend(q, k, v, dropout_p)


def draw_alone(module: nn.Module, group: Group = None) -> None:
    """From now on what `module` draws in training is this rank's own."""
    me, entered = member(group), []

    def before(module: nn.Module, _: Any) -> None:
        if module.training and getattr(module, "p", 1):  # a Dropout with p = 0 draws nothing
            entered.append(own_stream(me))
            entered[-1].__enter__()

    def after(*_: Any) -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(before)
    # Even where forward raises, as in a recomputation that has all it needs.
    module.register_forward_hook(after, always_call=True)
