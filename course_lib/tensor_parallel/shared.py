"""Parameters that all ranks hold whole and use on different things: each rank's gradient is one summand.

Under sequence parallelism a LayerNorm sees this rank's T/t tokens, and so does the bias that is added behind a row
layer. Without tensor parallelism nothing looks wrong when the sum is forgotten: the loss falls, and the ranks drift
apart. There are two ways not to forget it:

    share_parameters       before: the module's gradients are sums as soon as they come; parallelize does so
    sum_partial_gradients  after backward: one message for the parameters given

Source: Korthikanti et al. 2022; Megatron-LM does the second (`_allreduce_layernorm_grads`).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.collectives.along import start_all_reduce
from course_lib.groups.membership import Group, Member, member
from course_lib.groups.packing import add_up, pack, unpack


def sum_partial_gradients(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
    """After backward: each .grad becomes the sum over the ranks. Once for each backward pass from zero, on all ranks.

    For layers put together by hand: [row.bias, *norm.parameters()]. What share_parameters has done needs no more.
    """
    add_up([parameter.grad for parameter in dict.fromkeys(parameters) if parameter.grad is not None], group)


def share_parameters(module: nn.Module, group: Group = None) -> None:
    """From now on `module` uses its own parameters, those that are not cut, through the paper's f: one all-reduce."""
    me, replaced = member(group), []
    names = [name for name in module._parameters if name not in getattr(module, "cuts", ())]

    def before(module: nn.Module, _: Any) -> None:
        own = {name: module._parameters[name] for name in names}
        trained = {name: value for name, value in own.items() if value is not None and value.requires_grad}
        replaced.append(own)
        if trained and torch.is_grad_enabled():  # otherwise no gradient will come
            module._parameters.update(zip(trained, CopyAll.apply(me, *trained.values())))

    def after(module: nn.Module, *_: Any) -> None:
        module._parameters.update(replaced.pop())

    module.register_forward_pre_hook(before)
    # Even where forward raises, as in a recomputation that has all it needs.
    module.register_forward_hook(after, always_call=True)


class CopyAll(torch.autograd.Function):
    """copy_to_group of several tensors of one dtype: the sums of all their gradients in one message."""

    @staticmethod
    def forward(ctx: Any, me: Member, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors themselves, each rank's to use on something of its own."""
        ctx.me = me
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Each gradient summed over the ranks, all in one message."""
        flat, shapes = pack(gradients)  # one message: weight and bias of a norm are short
        return None, *unpack(start_all_reduce(flat, ctx.me)(), shapes)
