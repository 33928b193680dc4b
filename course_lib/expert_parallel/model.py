"""A GPT whose MLPs are experts. As many FLOPs for a token, E/k times as many parameters.

    E experts     k experts of a token     D hidden size     F = 4 D / k  width of an expert
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.expert_parallel.balance import auxiliary_loss
from course_lib.expert_parallel.layer import MoELayer, common_seed
from course_lib.groups.membership import Group, Member, member_or_single
from course_lib.groups.packing import broadcast
from course_lib.groups.replaced import remember_replacement
from course_lib.reference import GPT


class MoEGPT(GPT):
    """What moe_gpt makes of a GPT: in training its loss has the auxiliary losses in it, in evaluation it has not."""

    balance: float
    z: float
    tokens_group: Member

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """tokens, targets (B, T), this rank's own -> logits (B, T, V), and the mean loss if targets."""
        logits, loss = super().forward(tokens, targets)
        if loss is not None and self.training and (self.balance or self.z):
            loss = loss + auxiliary_loss(self, self.balance, self.z, self.tokens_group)
        return logits, loss


def moe_gpt(model: GPT, num_experts: int, k: int = 2, *, blocks: Iterable[int] | None = None,
            ffn_hidden_size: int | None = None, balance: float = 0.01, z: float = 0.0, group: Group = None,
            tokens_group: Group = None, **layer: Any) -> MoEGPT:
    """Put an MoELayer in the place of each MLP of `model`, in place, and return it. On all ranks of tokens_group.

    blocks: which; all by default. ffn_hidden_size: F, by default 4 D / k, which computes as much as the MLP did.
    balance, z: coefficients of the two auxiliary losses. group: the ranks that share the experts; tokens_group: those
    that hold different tokens; both the world by default. layer: options of MoELayer. Place 0's parameters are used.
    Experts start as a GPT's MLPs do, routers so that logits differ by about 1. An optimiser is made afterwards.
    """
    if type(model) is not GPT:
        raise ValueError(f"model is a {type(model).__name__}: expected a GPT")
    config, world = model.config, member_or_single(tokens_group)
    F = 4 * config.hidden_size // k if ffn_hidden_size is None else ffn_hidden_size
    chosen = range(config.num_layers) if blocks is None else sorted(blocks)
    if not set(chosen) <= set(range(config.num_layers)):
        raise ValueError(f"blocks={list(chosen)} of {config.num_layers}: expected numbers from 0 on")
    seed, like = common_seed(world), model.embedding.token.weight
    for number in chosen:
        # A seed for each of E experts, one for the shared ones and one for the router: E + 2 per block.
        block, of_block = model.blocks[number], seed + number * (num_experts + 2)
        remember_replacement(block.mlp.parameters(), "moe_gpt")
        made = MoELayer(config.hidden_size, F, num_experts, k, group=group, dropout=config.dropout, seed=of_block,
                        **layer)
        made.router.draw(config.hidden_size**-0.5, of_block + num_experts + 1)
        for experts in filter(None, (made.experts, made.shared)):
            experts.draw(of_block, 0.02, 0.02 / math.sqrt(2 * config.num_layers), bias=False)
        block.mlp = made.to(like.device, like.dtype).train(block.training)
    with torch.no_grad():
        # Everything but the experts, of which each rank has others.
        dealt_out = {p for block in model.blocks if isinstance(block.mlp, MoELayer) for p in
                     block.mlp.experts.parameters()}
        broadcast([p for p in model.parameters() if p not in dealt_out], world)
    # A change of class and not a wrapper: the names of all parameters stay.
    model.__class__, model.balance, model.z, model.tokens_group = MoEGPT, balance, z, world
    return model
