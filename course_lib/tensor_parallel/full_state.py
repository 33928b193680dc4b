"""What a model in slices has as a whole: its state, the norm of its gradients, and sums of what all ranks hold whole.

Under sequence parallelism a LayerNorm sees this rank's T/t tokens, and so does the bias that is added behind a row
layer: all ranks hold these parameters, and each rank's gradient is one summand. Without tensor parallelism nothing
looks wrong when the sum is forgotten: the loss falls, and the ranks drift apart. There are two ways not to forget it:

    share_parameters       before: the module's gradients are sums as soon as they come; parallelize does so
    sum_partial_gradients  after backward: one message for the parameters given

Source: Korthikanti et al. 2022; Megatron-LM does the second (`_allreduce_layernorm_grads`).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.collectives.differentiable import start_all_reduce
from course_lib.groups.gradients import add_up, clip_total_norm, pack, unpack
from course_lib.groups.membership import Group, Member, member
from course_lib.tensor_parallel.cut import Cut
from course_lib.tensor_parallel.linear import CutModule


def cut_modules(model: nn.Module) -> list[CutModule]:
    """The modules of `model` that hold slices. ValueError where there is none."""
    found = [module for module in model.modules() if isinstance(module, CutModule)]
    if not found:
        raise ValueError(f"this {type(model).__name__} has no tensor-parallel layer: expected one that parallelize has "
                         "cut, or that has a ColumnParallelLinear")
    return found


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Scale all gradients so that the norm of the whole model's is at most `max_norm`; returns what it was.

    Collective: one number. torch.nn.utils.clip_grad_norm_ would take the slices of this rank for all there is, so that
    ranks would scale differently; and adding up all ranks' squares would count what is whole t times.
    """
    cut = cut_modules(model)
    # A layer without a bias has None there.
    slices = {module._parameters[name] for module in cut for name in module.cuts} - {None}
    trained = [parameter for parameter in model.parameters() if parameter.grad is not None]
    parts = [parameter.grad for parameter in trained if parameter in slices]
    # All ranks hold the same gradient of these: one of t equal squares counts.
    wholes = [parameter.grad for parameter in trained if parameter not in slices]
    device = trained[0].device if trained else torch.device("cpu")
    return clip_total_norm(parts, wholes, max_norm, norm_type, cut[0].member, device)


def cuts_by_name(model: nn.Module) -> dict[str, tuple[Cut, Member]]:
    """How each parameter of `model` that is in slices is cut."""
    cut_modules(model)
    return {f"{prefix}.{name}" if prefix else name: (cut, module.member)
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name, cut in getattr(module, "cuts", {}).items()}


@torch.no_grad()
def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state_dict that the unsplit model would have, on the host, on every rank. Collective.

    A tied parameter is gathered once, and is one tensor under all its names.
    """
    cuts, wholes, state = cuts_by_name(model), {}, {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            state[name] = value  # what a module's get_extra_state gave
            continue
        if value not in wholes:
            cut, me = cuts.get(name, (None, None))
            whole = value.detach() if cut is None else cut.join(value.detach(), me)
            wholes[value] = whole.to("cpu", copy=True)  # a copy, which the next step does not change
        state[name] = wholes[value]
    return state


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
