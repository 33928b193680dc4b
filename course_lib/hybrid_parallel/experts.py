"""A GPT with experts among the other axes: who holds which experts, who sends which tokens, and auxiliary losses.

    T tokens of a row      t ranks of tp

Each token goes through its experts once. Under sequence parallelism a rank of tp has T/t tokens of its own there; else
all of them have the same T, so each takes its T/t, and they gather what comes back. Router and shared experts then see
a part of the tokens, and their gradients are summed over tp.

Backward's all-to-alls add up for an expert the tokens of ep*etp ranks. A mean over edp of these sums is the sum over
the plane, divided by edp; it should be divided by dp*cp, as everything else's is. So gradients of experts are
multiplied by edp / (dp*cp) = tp / (ep*etp) beforehand.

An auxiliary loss belongs to the stage whose experts it balances, and no later stage knows of it: its gradient enters
where backward enters the stage.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.collectives import gather_from_group, scatter_to_group
from course_lib.expert_parallel import MoELayer, auxiliary_loss
from course_lib.expert_parallel.model import MoEGPT
from course_lib.groups.membership import Member
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.split_experts import SplitExperts
from course_lib.reference import GPT
from course_lib.tensor_parallel import surgery
from course_lib.tensor_parallel.full_state import share_parameters
from course_lib.tensor_parallel.surgery import draw_alone


def deal_out_experts(model: GPT, ep: Member, etp: Member) -> None:
    """Each MoELayer of `model`, which has all experts, becomes this rank's part of it."""
    for block in model.blocks:
        if isinstance(block.mlp, MoELayer):
            # Whole experts are dealt out first, then each one that is here is cut: the two cuts are of different
            # dimensions.
            if ep.n > 1:
                block.mlp = MoELayer.from_unsplit(block.mlp, ep)
            if etp.n > 1:
                block.mlp.experts = SplitExperts(block.mlp.experts, etp)


def deal_out_tokens(model: GPT, tp: Member) -> None:
    """Each MoELayer of `model`, which gets (B, T, D) that all ranks of tp have, computes on T/t tokens of its own."""
    for layer in (block.mlp for block in model.blocks if isinstance(block.mlp, MoELayer)):
        surgery.change_input(layer, partial(scatter_to_group, dim=-2, group=tp))
        surgery.change_output(layer, partial(gather_from_group, dim=-2, group=tp))
        draw_alone(layer, tp)  # other tokens, other masks
        for module in filter(None, (layer.router, layer.shared)):
            # Each rank of tp now sees other tokens, so its gradients of what all hold whole are summands.
            share_parameters(module, tp)


def scale_gradients(experts: Iterable[nn.Parameter], layout: ParallelLayout) -> None:
    """From now on the gradients of `experts`, averaged over edp, are those of the mean over the whole batch."""
    share = layout.tp / (layout.ep * layout.etp)
    for parameter in experts if share != 1 else ():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * share)


def auxiliary_of(model: GPT, layout: ParallelLayout, share: float) -> Callable[[nn.Module], Tensor] | None:
    """A function that gives the auxiliary loss of a stage's last forward pass; None where `model` has none.

    Experts' choices are counted over the ranks with different tokens: dp, cp and tp. share: of the loss, where ranks'
    gradients are added up, and of the batch, where micro-batches' are.
    """
    if not isinstance(model, MoEGPT) or not (model.balance or model.z):
        return None
    balance, z, tokens_group = model.balance * share, model.z * share, layout.member("dp", "cp", "tp")
    return lambda stage: auxiliary_loss(stage, balance, z, tokens_group)


def carry_auxiliary_loss(stage: nn.Module, auxiliary: Callable[[nn.Module], Tensor] | None) -> None:
    """From now on, in training, backward through what `stage` returns also goes through its auxiliary loss."""
    if auxiliary is None or not any(isinstance(module, MoELayer) for module in stage.modules()):
        return

    def carry(stage: nn.Module, _: Any, y: Tensor) -> Tensor | None:
        # Without a backward pass there is nothing that would carry it.
        return WithAuxiliaryLoss.apply(y, auxiliary(stage)) if stage.training and torch.is_grad_enabled() else None

    stage.register_forward_hook(carry)


class WithAuxiliaryLoss(torch.autograd.Function):
    """y, as if `loss` were added to whatever is computed from it."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        """y (..., D) itself. `loss`, a scalar, gets a gradient of 1 when y gets its own."""
        # Only what it looks like: with its graph the loss would keep the activations of the routers.
        ctx.like = loss.detach()
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        """dy unchanged, and 1 for the loss: it is added to the model's without passing through the layers behind."""
        return dy, torch.ones_like(ctx.like)
