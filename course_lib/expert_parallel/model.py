"""A GPT whose MLPs are experts, and what keeps them equally busy: a loss that says so, or a bias that makes up for it.

    N tokens     E experts     k experts of a token     D hidden size     F = 4 D / k  width of an expert
    f_i  share of the choices that went to expert i     P_i  mean score of expert i

As many FLOPs for a token as the GPT has, and E/k times as many parameters. Left alone a router collapses: an expert
that is chosen more learns more, and is chosen more. The load-balancing loss E sum f_i P_i pulls scores away from busy
experts; its gradient comes through P alone, for counts have none. Its price is that it pulls against the model's own
loss. A bias on the choice, raised for idle experts and lowered for busy ones, has no gradient at all, and so no such
price; its own is that tokens go where they are not liked best. It evens out sigmoids better than a softmax, and from
step to step more steadily: `python -m benchmarks.balancing` measures both.

Sources: Fedus et al. 2021, "Switch Transformers", equations 4 to 6; Zoph et al. 2022, "ST-MoE" (z-loss); Wang et al.
2024, "Auxiliary-Loss-Free Load Balancing Strategy"; Qiu et al. 2025, "Demons in the Detail" (f over the whole batch).
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.expert_parallel.layer import MoELayer, common_seed, moe_layers
from course_lib.expert_parallel.routing import tokens_per_expert
from course_lib.groups.gradients import broadcast, remember_replacement
from course_lib.groups.membership import Group, Member, member_or_single, sendable
from course_lib.reference import GPT


def load_balancing_loss(scores: Tensor, experts: Tensor, counts: Tensor | None = None) -> Tensor:
    """E sum f_i P_i, a scalar: 1 when all experts are used evenly, E when one does everything.

    scores (N, E), which add up to 1 for each token; experts (N, k). f counts all k slots, before any are dropped.
    counts (E,): choices counted over more tokens than these, the whole batch say (sum_over_group). The mean of the
    ranks' losses is then that of the whole batch, and so is its gradient, however the tokens are dealt out.

    >>> even = torch.full((4, 2), 0.5)
    >>> load_balancing_loss(even, torch.tensor([[0], [1], [0], [1]])).item()
    1.0
    """
    E = scores.shape[1]
    counts = tokens_per_expert(experts, E) if counts is None else counts
    # A rank may have no tokens: then all counts are 0, and so is the loss.
    f = counts.to(scores.dtype) / counts.sum().clamp(min=1)  # (E,)
    P = scores.sum(0) / max(1, len(scores))  # (E,)
    return E * (f * P).sum()


def router_z_loss(logits: Tensor) -> Tensor:
    """Mean of logsumexp(logits)^2, a scalar: keeps logits (N, E) small, where exponentials are exact."""
    return logits.logsumexp(-1).square().sum() / max(1, len(logits))


def update_bias(bias: Tensor, tokens_per_expert: Tensor, rate: float) -> Tensor:
    """The new bias (E,): up by `rate` for experts that had fewer tokens than the mean, down for those with more."""
    load = tokens_per_expert.to(bias.dtype)
    # The sign alone, as in the paper: a step of one size, however far off an expert is.
    return bias + rate * (load.mean() - load).sign()


def sum_over_group(counts: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' `counts`, integers of any shape: one small all-reduce. `group`: whose tokens to balance."""
    me = member_or_single(group)
    if me.n == 1:
        return counts
    total = sendable(counts, me).clone()
    dist.all_reduce(total, group=me.group)
    return total.to(counts.device)


def auxiliary_loss(model: nn.Module, balance: float = 0.0, z: float = 0.0, group: Group = None) -> Tensor:
    """`balance` x load_balancing_loss + `z` x router_z_loss, added over the MoE layers of `model`: of its last forward.

    To be added to each rank's own mean loss. group: the ranks that hold different tokens, over which f is counted in
    one message. When gradients are then averaged over these ranks, as those of the loss are, a rank's share comes out
    right: an auxiliary loss that is summed instead grows with the number of ranks.
    """
    layers, total = moe_layers(model), 0.0
    everyones = torch.stack([layer.tokens_per_expert() for layer in layers])  # (layers, E)
    if balance:
        everyones = sum_over_group(everyones, group)
    for layer, counts in zip(layers, everyones):
        routing = layer.last_routing()
        # The last forward pass's, with its graph: the gradient goes through P into the router.
        scores = routing.scores / routing.scores.sum(-1, keepdim=True)  # sigmoids do not add up to 1
        total = total + balance * load_balancing_loss(scores, routing.experts, counts) + z * router_z_loss(
            routing.logits)
    return total


class BiasBalancer:
    """Balance without an auxiliary loss: counts the choices in `model`'s MoE layers, and moves their biases.

    balancer = BiasBalancer(model, rate=0.01), then balancer.step() after each optimizer.step(), on all ranks of
    `group`, which are those that hold different tokens; their counts are added in one message. `tokens_per_expert`
    (layers, E) are the counts of the last step.
    """

    def __init__(self, model: nn.Module, rate: float = 1e-2, group: Group = None) -> None:
        self.layers, self.rate, self.group = moe_layers(model), rate, group
        self.counted = [0] * len(self.layers)
        self.tokens_per_expert: Tensor | None = None
        for index, layer in enumerate(self.layers):
            layer.register_forward_hook(lambda layer, *_, index=index: self.count(index, layer))

    def count(self, index: int, layer: MoELayer) -> None:
        """Add the choices of layer `index` in this forward pass; called by a hook, counts in training mode only."""
        if layer.training:
            # Summed, as there may be several forward passes (micro-batches) to a step.
            self.counted[index] = self.counted[index] + layer.tokens_per_expert()

    @torch.no_grad()
    def step(self) -> None:
        """Add up all ranks' counts, move each layer's bias by `rate`, count anew. ValueError without a forward pass
        since the last one.
        """
        if not all(isinstance(count, Tensor) for count in self.counted):
            raise ValueError("nothing was counted since the last step: expected a forward pass in training mode")
        self.tokens_per_expert = sum_over_group(torch.stack(self.counted), self.group)
        for layer, counts in zip(self.layers, self.tokens_per_expert):
            layer.router.bias.copy_(update_bias(layer.router.bias, counts, self.rate))
        self.counted = [0] * len(self.layers)


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
    """Put an MoELayer instead of each MLP into `model`, and return it. On all ranks of tokens_group.

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
