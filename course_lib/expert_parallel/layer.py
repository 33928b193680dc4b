"""An MoE layer over a group: each rank has its own tokens, and E/R of the experts.

    N tokens of this rank     D hidden size     E experts     R ranks     k experts of a token

    router      (N, D) -> which experts, how much each counts       every rank, the same numbers
    permute     k rows for each token, by expert                       dispatch.py has all from here on
    dispatch    all-to-all: rows to the ranks that hold their experts
    experts     each on the rows that came
    combine     all-to-all back
    unpermute   the k rows of a token, times their weights, added up

A rank's gradients of its experts are sums over the tokens of all ranks in the group; those of the router are of its own
tokens alone: average_gradients knows what to do with both.

Sources: Shazeer et al. 2017; Lepikhin et al. 2020, "GShard"; Gale et al. 2022, "MegaBlocks" (no padding, no drops);
Dai et al. 2024, "DeepSeekMoE" (shared experts).
"""

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.costs.splitting import expert_capacity, experts_per_rank, first_expert
from course_lib.expert_parallel.dispatch import (
    Choices,
    Nodes,
    require_nodes,
    through_experts,
    through_experts_in_chunks,
    through_nodes,
)
from course_lib.expert_parallel.experts import Experts
from course_lib.expert_parallel.routing import Routing, TopKRouter, capacity_mask, tokens_per_expert
from course_lib.groups.gradients import broadcast
from course_lib.groups.membership import Group, Member, describe, member_or_single


class MoELayer(nn.Module):
    """E experts on R ranks, rank r holding those from r E/R on, and a router that sends each token to k of them.

    capacity_factor: an expert takes ceil(factor k N / E) of this rank's N tokens, and what is more is dropped, which
    leaves zeros; None is dropless. activation: "gelu" or "swiglu". num_shared: experts that see every token, whole on
    every rank, as one of num_shared times the width. num_chunks: pieces in which tokens travel, so that some
    do while others are computed. nodes: (the ranks of my node, the ranks in my place on every node), for an all-to-all
    in two levels. dropout: of the output. seed: what experts draw their numbers from; by default place 0 draws it from
    torch's own generator. router: options of TopKRouter.

    `group` are the ranks that share the experts; outside of launch, or with SINGLE, all of them are here. On all ranks
    of the group, each time.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_experts: int, k: int = 2,
                 capacity_factor: float | None = None, group: Group = None, activation: str = "gelu", *,
                 num_shared: int = 0, bias: bool = True, num_chunks: int = 1, nodes: Nodes | None = None,
                 dropout: float = 0.0, seed: int | None = None, **router: Any) -> None:
        super().__init__()
        self.member = me = member_or_single(group)
        self.num_experts, self.capacity_factor = num_experts, capacity_factor
        if capacity_factor is not None:
            expert_capacity(capacity_factor, k, 1, num_experts)  # ValueError for what is no factor
        self.num_chunks, self.nodes = num_chunks, require_nodes(nodes, num_experts, num_chunks, me)
        self.router = TopKRouter(hidden_size, num_experts, k, **router)
        if seed is None:
            seed = common_seed(me)
        self.experts = Experts(hidden_size, ffn_hidden_size, experts_per_rank(num_experts, me.n)[me.r], activation,
                               bias, first_expert(num_experts, me.n, me.r), seed)
        self.shared = Experts(hidden_size, num_shared * ffn_hidden_size, 1, activation, bias,
                              num_experts, seed) if num_shared else None
        self.dropout = nn.Dropout(dropout)
        # Experts draw from one seed. The router has drawn from each rank's own generator.
        broadcast(self.router.parameters(), me)
        # What from_unsplit needs to make the same layer on a group.
        self.options = {"k": k, "capacity_factor": capacity_factor, "activation": activation,
                        "num_shared": num_shared, "bias": bias, "dropout": dropout, **router}
        self.routing: Routing | None = None  # of the last forward pass, and which of its choices were kept
        self.kept: Tensor | None = None

    @classmethod
    def from_unsplit(cls, layer: "MoELayer", group: Group = None, **options: Any) -> "MoELayer":
        """This rank's part of `layer`, which has all experts and the same numbers on all ranks."""
        if not isinstance(layer, MoELayer) or layer.member.n > 1:
            raise ValueError(f"layer={layer!r}: expected an MoELayer with all of its experts, made with group=SINGLE")
        _, D = layer.router.weight.shape
        made = cls(D, layer.experts.w2.shape[1], layer.num_experts, group=group, seed=0, **layer.options | options)
        made.to(layer.router.weight.device, layer.router.weight.dtype)
        made.train(layer.training)
        first, here = made.experts.first, len(made.experts.w1)
        with torch.no_grad():
            whole = dict(layer.state_dict())
            for name, value in made.state_dict().items():
                value.copy_(whole[name][first:first + here] if name.startswith("experts.") else whole[name])
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D). What was decided is in `routing` and `kept` until the next time."""
        if x.shape[-1:] != self.router.weight.shape[1:]:
            raise ValueError(f"x {describe(x)}: expected (..., {self.router.weight.shape[1]})")
        tokens = x.reshape(-1, x.shape[-1])  # (N, D)
        # Kept with its graph: an auxiliary loss asks for it after the forward pass.
        self.routing = routing = self.router(tokens)
        self.kept = self.mask_of_choices(routing)
        choices = Choices(routing.experts, routing.weights, self.kept, self.num_experts)
        if self.nodes is not None:
            y = through_nodes(tokens, choices, self.experts, *self.nodes)
        elif self.num_chunks > 1 and self.member.n > 1:
            y = through_experts_in_chunks(tokens, choices, self.experts, self.member, self.num_chunks)
        else:
            y = through_experts(tokens, choices, self.experts, self.member)
        if self.shared is not None:
            # Shared experts are whole on every rank: nothing is sent for them.
            y = y + self.shared(tokens, [len(tokens)])
        return self.dropout(y.view(x.shape))

    def mask_of_choices(self, routing: Routing) -> Tensor | None:
        """(N, k) bool, or None where there is no capacity."""
        if self.capacity_factor is None:
            return None
        N, k = routing.experts.shape
        capacity = expert_capacity(self.capacity_factor, k, N, self.num_experts)
        return capacity_mask(routing.experts, self.num_experts, capacity)

    def last_routing(self) -> Routing:
        """Which experts the tokens of the last forward pass chose. ValueError before there was one."""
        if self.routing is None:
            raise ValueError("this MoELayer has not seen any tokens yet: expected a forward pass before")
        return self.routing

    def tokens_per_expert(self) -> Tensor:
        """(E,): how many of this rank's choices in the last forward pass went to each expert, before drops."""
        return tokens_per_expert(self.last_routing().experts, self.num_experts)

    def extra_repr(self) -> str:
        """Experts, ranks and capacity: what print(model) shows."""
        return f"{self.num_experts} experts / {self.member.n} ranks, capacity_factor={self.capacity_factor}"


def common_seed(me: Member) -> int:
    """A number that place 0 draws from torch's generator of the CPU."""
    seed = torch.randint(2**31, (1,), device="cpu")
    # A group of one has no wire.
    seed = seed.to(me.wire(torch.device("cpu"))) if me.n > 1 else seed
    broadcast([seed], me)
    return int(seed)


def moe_layers(model: nn.Module) -> list[MoELayer]:
    """The MoELayers in `model`. ValueError where there is none."""
    found = [module for module in model.modules() if isinstance(module, MoELayer)]
    if not found:
        raise ValueError(f"this {type(model).__name__} has no MoELayer: expected a model with one, as moe_gpt makes it")
    return found
