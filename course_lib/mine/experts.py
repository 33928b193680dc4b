"""A layer of experts in the place of an MLP, dealt out over ep: the holes of chapter 8.

    N tokens of this rank      E experts, E/R on each of the R ranks of ep      k experts of a token

Each token goes through its experts once: where all ranks of tp have the same tokens, each of them sends its T/t.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import gather_from_group, scatter_to_group
from course_lib.collectives.differentiable import Pair
from course_lib.expert_parallel import (
    MoELayer,
    dispatch_splits,
    exchange_rows,
    load_balancing_loss,
    permute,
    route,
    sum_over_group,
    tokens_per_expert,
    unpermute,
)
from course_lib.groups.membership import Member
from course_lib.hybrid_parallel.parallelize import WithAuxiliaryLoss
from course_lib.mine.holes import hole

my_gate = hole("8.1", lambda logits, bias, k, num_groups, scale: (  # of a single group
    (routing := route(logits, k, "sigmoid", bias=bias)).experts, routing.weights * scale), compares=False)


@hole("8.2")
def my_block_rows(tokens: Tensor, experts: Tensor, weights: Tensor, num_experts: int, block: int) -> tuple:
    """(rows (M, D), expert after expert, back: (M, D) -> tokens). For blocks of one row."""
    rows, order = permute(tokens, experts)
    return rows, lambda y: unpermute(y, order, weights)


@hole("8.3")
def my_dispatch(tokens: Tensor, choices: Tensor, among: Member) -> tuple:
    """(received (M, D), theirs (M, E/R), back): each token once to each rank that has experts for it."""
    by_rank = choices.view(len(tokens), among.n, -1)  # (N, R, E/R)
    rank, token = by_rank.amax(-1).T.nonzero().unbind(1)  # in the order of sending
    sent, received = dispatch_splits(rank.unsqueeze(1), among.n, among)
    return (exchange_rows(tokens[token], sent, received, among),
            exchange_rows(by_rank[token, rank], sent, received, among),
            lambda y: torch.zeros_like(tokens).index_add(0, token, exchange_rows(y, received, sent, among)))


@hole("8.4")
def my_balance_loss(logits: Tensor, k: int, among: Member) -> Tensor:
    """R sum f P over the ranks: f the share of everybody's choices that are a rank's, P its mean probability here."""
    ranks = logits.topk(k).indices // (logits.shape[1] // among.n)
    P = logits.softmax(1).unflatten(1, (among.n, -1)).sum(-1)  # (N, R)
    return load_balancing_loss(P, ranks, sum_over_group(tokens_per_expert(ranks, among.n), among))


class MoE(nn.Module):
    """This rank's experts of `whole`, and the router, which all have. x (..., D) -> (..., D)."""

    def __init__(self, whole: MoELayer, mesh: Callable[..., Member], balance: float, cuts_tokens: bool) -> None:
        super().__init__()
        self.ep, self.tp, self.plane = mesh("ep"), mesh("tp"), mesh("dp", "cp", "tp")
        here = MoELayer.from_unsplit(whole, self.ep) if self.ep.n > 1 else whole
        self.router, self.experts, self.num_experts = here.router, here.experts, here.num_experts
        self.balance, self.cuts_tokens = balance, cuts_tokens
        self.router.weight.kind = "partial"  # each rank of tp has other tokens here
        for parameter in self.experts.parameters():
            parameter.kind, parameter.cut = "expert", (0, [self.experts.first], len(parameter))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens to their experts and back; their gradients take with them what balances experts."""
        if self.cuts_tokens:
            x = scatter_to_group(x, -2, self.tp)
        tokens = x.flatten(0, -2)  # (N, D)
        logits, router = F.linear(tokens, self.router.weight), self.router
        if router.scoring == "sigmoid" and router.k > 1:
            experts, weights = my_gate(logits, router.bias, router.k, 1, 1.0)
        else:
            routing = route(logits, router.k, router.scoring)
            experts, weights = routing.experts, routing.weights
        y = self.on_other_ranks(tokens, experts, weights) if self.ep.n > 1 else self.here(tokens, experts, weights)
        if self.balance:  # times N, since 9.3 divides by the tokens of all ranks
            y = WithAuxiliaryLoss.apply(y, self.balance * len(tokens) * self.balance_loss(logits, experts))
        y = y.view(x.shape)
        return gather_from_group(y, -2, self.tp) if self.cuts_tokens else y

    def balance_loss(self, logits: Tensor, experts: Tensor) -> Tensor:
        """Evens out experts: by 8.4, which evens out ranks, where each rank has one."""
        if self.plane.n == self.num_experts and self.router.scoring == "softmax":
            return my_balance_loss(logits, self.router.k, among=self.plane)
        scores = logits.softmax(1) if self.router.scoring == "softmax" else F.normalize(logits.sigmoid(), 1)
        counts = sum_over_group(tokens_per_expert(experts, self.num_experts), self.plane)
        return load_balancing_loss(scores, experts, counts)

    def here(self, tokens: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """All experts are on this rank."""
        rows, back = my_block_rows(tokens, experts, weights, self.num_experts, 1)
        return back(self.experts(rows, tokens_per_expert(experts, self.num_experts).tolist()))

    def on_other_ranks(self, tokens: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """A token travels once to a rank, with its weights behind it; each rank weighs and adds up what it made of it.

        8.3 is no function of autograd. Gradients go where tokens went: `home` behind `there`, `there` behind `home`.
        """
        nothing, route_of = weights.new_zeros(len(tokens), self.num_experts), {}
        choices = nothing.to(torch.uint8).scatter(1, experts, 1)
        D, E_r = tokens.shape[1], self.num_experts // self.ep.n

        def there(rows: Tensor) -> Tensor:
            received, route_of["theirs"], route_of["back"] = my_dispatch(rows.contiguous(), choices, among=self.ep)
            return received

        def home(y: Tensor) -> Tensor:
            return route_of["back"](y.contiguous())

        rows = Pair.apply(torch.cat([tokens, nothing.scatter(1, experts, weights)], 1), there, home)  # (M, D + E)
        expert, row = route_of["theirs"].T.nonzero().unbind(1)  # by expert
        made = self.experts(rows[row, :D], expert.bincount(minlength=E_r).tolist())
        weight = rows[row, D + self.ep.r * E_r + expert].unsqueeze(1)
        y = torch.zeros_like(rows[:, :D]).index_add(0, row, made * weight)
        return Pair.apply(F.pad(y, (0, self.num_experts)), home, there)[:, :D]
