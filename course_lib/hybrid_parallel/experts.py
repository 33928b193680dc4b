"""A GPT with experts among the other axes: each rank of ep takes its experts, and stages carry their auxiliary losses.

Backward's all-to-all adds up the tokens of all ep ranks for an expert. So its gradient, divided by ep here, and then
averaged over edp, is divided by dp*cp in all, as everything else's is.

An auxiliary loss belongs to the stage whose experts it balances, and no later stage knows of it: its gradient enters
where backward enters the stage.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.expert_parallel import MoELayer, auxiliary_loss
from course_lib.expert_parallel.model import MoEGPT
from course_lib.groups.membership import Member
from course_lib.reference import GPT


def deal_out_experts(model: GPT, ep: Member) -> None:
    """Each MoELayer of `model`, which has all experts, becomes this rank's part of it."""
    for block in model.blocks:
        if isinstance(block.mlp, MoELayer) and ep.n > 1:
            block.mlp = MoELayer.from_unsplit(block.mlp, ep)
            for parameter in block.mlp.experts.parameters():
                parameter.register_hook(lambda gradient: gradient / ep.n)


def auxiliary_of(model: GPT, tokens_group: Member, share: float) -> Callable[[nn.Module], Tensor] | None:
    """A function that gives the auxiliary loss of a stage's last forward pass; None where `model` has none.

    tokens_group: the ranks with different tokens. share: of the loss, where ranks' gradients are added up, and of the
    batch, where micro-batches' are.
    """
    if not isinstance(model, MoEGPT) or not (model.balance or model.z):
        return None
    balance, z = model.balance * share, model.z * share
    return lambda stage: auxiliary_loss(stage, balance, z, tokens_group)


def carry_auxiliary_loss(stage: nn.Module, auxiliary: Callable[[nn.Module], Tensor] | None) -> None:
    """From now on, in training, backward through what `stage` returns also goes through its auxiliary loss."""
    if auxiliary is None or not any(isinstance(module, MoELayer) for module in stage.modules()):
        return

    def carry(stage: nn.Module, _: Any, y: Tensor) -> Tensor | None:
        return WithAuxiliaryLoss.apply(y, auxiliary(stage)) if stage.training and torch.is_grad_enabled() else None

    stage.register_forward_hook(carry)


class WithAuxiliaryLoss(torch.autograd.Function):
    """y, as if `loss` were added to whatever is computed from it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.detach()
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, torch.ones_like(ctx.like)
