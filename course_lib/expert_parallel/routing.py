"""The router: which k of E experts see a token, how much each of them counts, and what is kept under a capacity.

    N tokens     D hidden size     E experts     k experts of a token

    logits (N, E) = tokens W^T      scores = softmax(logits), or sigmoid      experts = the k highest      weights

Only weights carry a gradient to the router: the choice itself has none, so an expert that is never chosen never learns
that it should be.

Sources: Shazeer et al. 2017, "Outrageously Large Neural Networks" (top-k); Fedus et al. 2021, "Switch Transformers"
(k = 1 keeps the score, jitter, 32 bits); DeepSeek-AI 2024, "DeepSeek-V3", equations 12 to 16 (sigmoid, bias, groups).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.groups.membership import describe

SCORINGS = ("softmax", "sigmoid")


@dataclass(frozen=True)
class Routing:
    """What a router says of N tokens. Slot 0 is a token's best expert."""

    experts: Tensor  # (N, k) int64
    weights: Tensor  # (N, k)
    scores: Tensor  # (N, E)
    logits: Tensor  # (N, E)

    def __reduce__(self) -> tuple:  # a layer keeps its last one, and no copy of a layer has its graph
        return Routing, (self.experts, self.weights.detach(), self.scores.detach(), self.logits.detach())


def route(logits: Tensor, k: int, scoring: str = "softmax", normalize: bool = True, bias: Tensor | None = None,
          num_groups: int | None = None, top_groups: int | None = None) -> Routing:
    """Choose k experts for each row of `logits` (N, E).

    k = 1 keeps the score as the weight, or a router with one choice would get no gradient; k > 1 with `normalize`
    makes a token's weights add up to 1. bias (E,): added to the scores for the choice alone, never to the weights.
    num_groups, top_groups: experts lie in num_groups groups, one after the other, on nodes say, and only the top_groups
    best groups of a token are considered.
    """
    require_routing(logits, k, scoring, num_groups, top_groups)
    scores = logits.softmax(-1) if scoring == "softmax" else logits.sigmoid()  # (N, E)
    # Which experts are the highest is no function with a gradient.
    choice = scores.detach() if bias is None else scores.detach() + bias
    if num_groups is not None:
        choice = keep_best_groups(choice, k, num_groups, top_groups)
    experts = choice.topk(k, dim=-1).indices  # (N, k)
    weights = scores.gather(-1, experts)
    if normalize and k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)  # sigmoids may all be zero
    return Routing(experts, weights, scores, logits)


def keep_best_groups(choice: Tensor, k: int, num_groups: int, top_groups: int) -> Tensor:
    """`choice` (N, E) with minus infinity outside of each token's `top_groups` best groups.

    A group is as good as its k / top_groups best experts together: those that it would give, were all groups alike.
    """
    grouped = choice.unflatten(-1, (num_groups, -1))  # (N, groups, E / groups)
    best = grouped.topk(max(1, k // top_groups), dim=-1).values.sum(-1)  # (N, groups)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(top_groups, dim=-1).indices, True)
    return grouped.masked_fill(~chosen.unsqueeze(-1), float("-inf")).flatten(-2)


class TopKRouter(nn.Module):
    """A matrix (E, D) without bias, and `route`. `bias` (E,) is a buffer, for update_bias; zeros until then.

    jitter: in training tokens are multiplied by numbers from 1 - jitter to 1 + jitter before they are scored. Scores
    have 32 bits at least, under autocast too: in 16, experts that are nearly equal would be.
    """

    def __init__(self, hidden_size: int, num_experts: int, k: int = 2, scoring: str = "softmax",
                 normalize: bool = True, jitter: float = 0.0, num_groups: int | None = None,
                 top_groups: int | None = None) -> None:
        super().__init__()
        require_routing(torch.empty(0, num_experts, device="cpu"), k, scoring, num_groups, top_groups)
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter={jitter!r}: expected a number from 0 to below 1")
        self.num_experts, self.k, self.scoring, self.normalize, self.jitter = num_experts, k, scoring, normalize, jitter
        self.num_groups, self.top_groups = num_groups, top_groups
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.register_buffer("bias", torch.zeros(num_experts))
        self.draw(hidden_size**-0.5)

    @torch.no_grad()
    def draw(self, std: float, seed: int | None = None) -> None:
        """New numbers, from `seed` or torch's own generator: of the CPU, so that they are the same on every device."""
        generator = None if seed is None else torch.Generator("cpu").manual_seed(seed)
        self.weight.copy_(torch.randn(self.weight.shape, generator=generator, device="cpu") * std)

    def forward(self, tokens: Tensor) -> Routing:
        """tokens (N, D) -> Routing of N tokens."""
        if tokens.dim() != 2 or tokens.shape[1] != self.weight.shape[1]:
            raise ValueError(f"tokens {describe(tokens)}: expected (N, {self.weight.shape[1]})")
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        tokens = tokens.to(dtype)
        if self.jitter and self.training:
            tokens = tokens * torch.empty_like(tokens).uniform_(1 - self.jitter, 1 + self.jitter)
        # Nearly equal scores would be equal in 16 bits, and the choice arbitrary.
        with torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(tokens, self.weight.to(dtype))  # (N, E)
        return route(logits, self.k, self.scoring, self.normalize, self.bias, self.num_groups, self.top_groups)

    def extra_repr(self) -> str:
        """Sizes, k and scoring: what print(model) shows."""
        return f"{self.weight.shape[1]}, {self.num_experts}, k={self.k}, scoring={self.scoring!r}"


def require_routing(logits: Tensor, k: int, scoring: str, num_groups: int | None, top_groups: int | None) -> None:
    """ValueError for logits that are no (N, E), and for a choice that cannot be made."""
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits {describe(logits)}: expected (tokens, experts), floating-point")
    E = logits.shape[1]
    if scoring not in SCORINGS:
        raise ValueError(f"scoring={scoring!r}: expected one of {', '.join(SCORINGS)}")
    if not 1 <= k <= E:
        raise ValueError(f"k={k!r} of {E} experts: expected 1 to {E}")
    if (num_groups is None) != (top_groups is None):
        raise ValueError(f"num_groups={num_groups}, top_groups={top_groups}: expected both or neither")
    if num_groups is not None:
        if num_groups < 1 or E % num_groups or not 1 <= top_groups <= num_groups:
            raise ValueError(f"top_groups={top_groups} of num_groups={num_groups} with {E} experts: expected groups "
                             "that divide the experts, and from 1 to all of them")
        if k > top_groups * (E // num_groups):
            raise ValueError(f"k={k} experts from {top_groups} groups of {E // num_groups}: expected no more than "
                             "there are in them")


def tokens_per_expert(experts: Tensor, num_experts: int, kept: Tensor | None = None) -> Tensor:
    """(E,) int64: how often each expert was chosen in `experts` (N, k), where `kept`.

    >>> tokens_per_expert(torch.tensor([[2, 0], [2, 1]]), num_experts=4).tolist()
    [1, 1, 2, 0]
    """
    # bincount would wait for the device, to see how many experts there are, and a mask for how many choices it keeps.
    chosen = (experts if kept is None else experts.where(kept, 0)).flatten()
    each = torch.ones_like(chosen) if kept is None else kept.flatten().long()
    return chosen.new_zeros(num_experts).scatter_add_(0, chosen, each)


def capacity_mask(experts: Tensor, num_experts: int, capacity: int, weights: Tensor | None = None) -> Tensor:
    """(N, k) bool: which choices are kept where an expert takes `capacity` of them at most.

    experts (N, k). First come, first kept: slot 0 of all tokens comes before slot 1. By weight where weights (N, k) are
    given, the largest first: then it does not matter where in the batch a token stands.

    >>> capacity_mask(torch.tensor([[0], [0], [1]]), num_experts=2, capacity=1).flatten().tolist()
    [True, False, True]
    """
    require_choice(experts, len(experts))
    if capacity < 0:
        raise ValueError(f"capacity={capacity}: expected 0 or more rows")
    N, k = experts.shape
    flat = experts.T.flatten()  # (k N,): slot after slot
    if weights is None:
        queue = torch.arange(N * k, device=experts.device)
    else:
        queue = weights.detach().T.flatten().argsort(descending=True, stable=True)
    # Stable once more: within an expert the order of the queue stays.
    by_expert = queue[flat[queue].argsort(stable=True)]  # each expert's queue, one after the other
    lengths = tokens_per_expert(experts, num_experts)
    starts = lengths.cumsum(0) - lengths
    position = torch.arange(N * k, device=experts.device) - starts[flat[by_expert]]  # in its expert's queue
    kept = torch.empty(N * k, dtype=torch.bool, device=experts.device)
    kept[by_expert] = position < capacity
    return kept.view(k, N).T.contiguous()


def require_choice(experts: Tensor, num_tokens: int) -> None:
    """ValueError unless `experts` is int64 (num_tokens, k)."""
    if experts.dim() != 2 or experts.shape[0] != num_tokens or experts.dtype != torch.int64:
        raise ValueError(f"experts {describe(experts)} of {num_tokens} tokens: expected int64[{num_tokens}, k]")
